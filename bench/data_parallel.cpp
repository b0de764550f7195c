// Time of a training step in one process: one thread alone, one replica with several threads in each operator, replicas
// under DataParallel with one thread each, or LibTorch's own replicate() and parallel_apply(). The same models, batches
// and optimizer. LibTorch's data_parallel() itself needs CUDA, for its scatter and gather; narrow and cat stand for
// them. "part" is the limit, for as many processes at once: each trains its part of the batch with one thread, and its
// optimizer steps its share of the parameters.
#include <lockstep/nn/data_parallel.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "step_program.h"

namespace {

struct Options : lockstep::bench::StepOptions {
  std::string mode;
  int replicas = 2;
};

using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

void measure(const Options& options, const Forward& forward, std::vector<torch::Tensor> parameters,
             const lockstep::bench::Batch& batch) {
  torch::optim::SGD optimizer(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(0.9));
  const auto nothing = [] {};
  const std::vector<double> seconds = lockstep::bench::time_steps(options.steps, nothing, [&] {
    optimizer.zero_grad();
    torch::cross_entropy_loss(forward(batch.images), batch.labels).backward();
    optimizer.step();
  });
  std::ofstream(options.output) << nlohmann::json{{"seconds", seconds}};
}

// As torch::nn::parallel::data_parallel does it, which makes new replicas in each pass.
template <typename Net>
torch::Tensor libtorch(Net& net, const torch::Tensor& images, int replicas) {
  const std::vector<torch::Tensor> parts = images.chunk(replicas);
  const std::vector<torch::Device> devices(parts.size(), torch::kCPU);
  auto modules = torch::nn::parallel::replicate(net, devices);
  return torch::cat(torch::nn::parallel::parallel_apply(modules, parts, devices));
}

// Of about equal bytes for each process.
std::vector<torch::Tensor> share(const std::vector<torch::Tensor>& parameters, std::int64_t rank, std::int64_t world) {
  std::int64_t all = 0;
  for (const torch::Tensor& parameter : parameters) all += parameter.numel();
  std::vector<torch::Tensor> mine;
  std::int64_t before = 0;
  for (const torch::Tensor& parameter : parameters) {
    if ((before + parameter.numel() / 2) * world / all == rank) mine.push_back(parameter);
    before += parameter.numel();
  }
  return mine;
}

template <typename Net>
void run_part(Options options, Net net, const lockstep::bench::Batch& batch) {
  const char* given = std::getenv("RANK");
  if (given == nullptr)
    lockstep::bench::die("RANK", "expected in the environment: this is a part of a run of bench/run.py");
  const std::int64_t rank = std::atoll(given);
  options.output += "." + std::to_string(rank);
  const std::int64_t length = batch.labels.size(0) / options.replicas;
  const auto part = [&](const torch::Tensor& whole) { return whole.narrow(0, rank * length, length).clone(); };
  const auto forward = [&](const torch::Tensor& x) {
    net->zero_grad();  // the optimizer knows only its share, and the other gradients would add up from step to step
    return net->forward(x);
  };
  measure(options, forward, share(net->parameters(), rank, options.replicas), {part(batch.images), part(batch.labels)});
}

template <typename Net>
void run(const Options& options, Net net, const lockstep::bench::Batch& batch) {
  torch::set_num_threads(options.mode == "alone" || options.mode == "part" ? 1 : options.replicas);
  if (options.mode == "parallel") {
    lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = options.replicas, .threads_per_replica = 1});
    measure(
        options, [&](const torch::Tensor& x) { return parallel.forward(x); }, net->parameters(), batch);
  } else if (options.mode == "part") {
    run_part(options, net, batch);
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
  Options options;
  CLI::App app("Step time of a training workload on replicas of one process");
  lockstep::bench::add_step_options(app, options);
  app.add_option("--mode", options.mode)
      ->required()
      ->check(CLI::IsMember({"alone", "operators", "parallel", "libtorch", "part"}));
  app.add_option("--replicas", options.replicas)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  torch::manual_seed(0);
  lockstep::bench::run_workload(options.workload,
                                {.cnn_28 = 256, .mlp_6m = 512, .resnet18_32 = 128, .resnet18_224 = 16},
                                [&](const auto& net, const auto& batch) { run(options, net, batch); });
  return 0;
}
