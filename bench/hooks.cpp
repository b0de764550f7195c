// Time of a training step under DistributedDataParallel with each communication hook, and the bytes of gradients that a
// rank sends in it. One thread per process, started by `lockstep run`. Rank 0 writes a line of JSON.
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/power_sgd.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "step_program.h"

namespace {

using namespace lockstep;

struct Options : bench::StepOptions {
  std::string hook;
  std::int64_t rank = 1;
};

std::shared_ptr<CommHook> hook_of(const Options& options) {
  const PowerSgdOptions power{.matrix_approximation_rank = options.rank, .start_power_sgd_iter = 0};
  if (options.hook == "none") return nullptr;
  if (options.hook == "noop") return make_noop_hook();
  if (options.hook == "fp16") return make_compress_hook(torch::kHalf);
  if (options.hook == "bf16") return make_compress_hook(torch::kBFloat16);
  if (options.hook == "bf16-feedback") return make_compress_hook(torch::kBFloat16, {.error_feedback = true});
  if (options.hook == "power-sgd") return make_power_sgd_hook(power);
  if (options.hook == "bf16-power-sgd") return make_compress_wrapper(torch::kBFloat16, make_power_sgd_hook(power));
  bench::die("--hook", "unknown: " + options.hook);
}

template <typename Net>
void measure(const Options& options, Net net) {
  DistributedDataParallel<Net> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  const bench::Batch batch = bench::make_batch(32, {1, 28, 28});
  const auto step = [&] {
    optimizer.zero_grad();
    torch::cross_entropy_loss(ddp->forward(batch.images), batch.labels).backward();
    optimizer.step();
  };
  ddp.register_comm_hook(hook_of(options));
  const std::vector<double> seconds = bench::time_steps(
      options.steps, [] { barrier(); }, step);
  if (get_rank() != 0) return;
  nlohmann::json shapes = nlohmann::json::array();
  for (const torch::Tensor& parameter : net->parameters()) shapes.push_back(parameter.sizes().vec());
  std::ofstream(options.output) << nlohmann::json{
      {"seconds", seconds}, {"sent", ddp.reducer().sent().last_pass}, {"shapes", shapes}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Step time and bytes of a communication hook");
  bench::add_step_options(app, options);
  app.get_option("--workload")->check(CLI::IsMember({"cnn-28", "mlp-6M"}));
  app.add_option("--hook", options.hook)->required();
  app.add_option("--rank", options.rank, "of PowerSGD's matrices");
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  torch::manual_seed(0);
  const ProcessGroupGuard group("lockstep");
  if (options.workload == "cnn-28") {
    measure(options, bench::Cnn());
  } else {
    measure(options, bench::Mlp());
  }
}
