// Time of a training step in one process: one thread alone, one replica with several threads in each operator, replicas
// under DataParallel with one thread each, or LibTorch's own replicate() and parallel_apply(). The same models, batches
// and optimizer. LibTorch's data_parallel() itself needs CUDA, for its scatter and gather; narrow and cat stand for
// them.
#include <lockstep/nn/data_parallel.h>
#include <lockstep/nn/models/resnet.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "measure.h"
#include "step_models.h"

namespace {

struct Options {
  std::string mode;
  std::string workload;
  int replicas = 2;
  int steps = 0;
  std::string output;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of a training workload on replicas of one process");
  app.add_option("--mode", options.mode)
      ->required()
      ->check(CLI::IsMember({"alone", "operators", "parallel", "libtorch"}));
  app.add_option("--workload", options.workload)->required();
  app.add_option("--replicas", options.replicas)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->required();
  app.add_option("--output", options.output)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
};

Batch make_batch(std::int64_t size, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), size);
  return {torch::randn(shape), torch::randint(0, 10, {size}, torch::kLong)};
}

using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

void measure(const Options& options, const Forward& forward, std::vector<torch::Tensor> parameters,
             const Batch& batch) {
  constexpr int kWarmUp = 3;
  torch::optim::SGD optimizer(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(0.9));
  std::vector<double> seconds;
  for (int i = -kWarmUp; i < options.steps; ++i) {
    const double start = lockstep::bench::now();
    optimizer.zero_grad();
    torch::cross_entropy_loss(forward(batch.images), batch.labels).backward();
    optimizer.step();
    if (i >= 0) seconds.push_back(lockstep::bench::now() - start);
  }
  std::ofstream(options.output) << nlohmann::json{{"seconds", seconds}};
}

// As torch::nn::parallel::data_parallel does it, which makes the replicas anew in each pass.
template <typename Net>
torch::Tensor libtorch(Net& net, const torch::Tensor& images, int replicas) {
  const std::vector<torch::Tensor> parts = images.chunk(replicas);
  const std::vector<torch::Device> devices(parts.size(), torch::kCPU);
  auto modules = torch::nn::parallel::replicate(net, devices);
  return torch::cat(torch::nn::parallel::parallel_apply(modules, parts, devices));
}

template <typename Net>
void run(const Options& options, Net net, const Batch& batch) {
  torch::set_num_threads(options.mode == "alone" ? 1 : options.replicas);
  if (options.mode == "parallel") {
    lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = options.replicas, .threads_per_replica = 1});
    measure(
        options, [&](const torch::Tensor& x) { return parallel.forward(x); }, net->parameters(), batch);
  } else if (options.mode == "libtorch") {
    measure(
        options, [&](const torch::Tensor& x) { return libtorch(net, x, options.replicas); }, net->parameters(), batch);
  } else {
    measure(
        options, [&](const torch::Tensor& x) { return net->forward(x); }, net->parameters(), batch);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  torch::manual_seed(0);
  if (options.workload == "cnn-28") {
    run(options, lockstep::bench::Cnn(), make_batch(256, {1, 28, 28}));
  } else if (options.workload == "mlp-6M") {
    run(options, lockstep::bench::Mlp(), make_batch(512, {1, 28, 28}));
  } else if (options.workload == "resnet18-32") {
    run(options, lockstep::models::resnet18({.num_classes = 10}), make_batch(128, {3, 32, 32}));
  } else if (options.workload == "resnet18-224") {
    run(options, lockstep::models::resnet18({.num_classes = 10}), make_batch(16, {3, 224, 224}));
  } else {
    lockstep::bench::die("--workload", "unknown: expected cnn-28, mlp-6M, resnet18-32 or resnet18-224");
  }
  return 0;
}
