// Time of an optimizer's step in one thread: by its own step(), or by fused_step(). Peer: peers/optimizers.py, with the
// same parameters, gradients and options.
#include <lockstep/models/resnet.h>
#include <lockstep/nn/fused_step.h>
#include <torch/torch.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "step_program.h"

namespace {

using lockstep::bench::die;
using torch::optim::Optimizer;
using Parameters = std::vector<torch::Tensor>;

struct Options : lockstep::bench::StepOptions {
  std::string optimizer;
  bool fused = false;
};

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const Parameters& parameters) {
  namespace optim = torch::optim;
  const optim::SGDOptions momentum = optim::SGDOptions(1e-3).momentum(0.9);
  if (name == "sgd-momentum") return std::make_unique<optim::SGD>(parameters, momentum);
  if (name == "sgd-momentum-decay") {
    return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(momentum).weight_decay(1e-4));
  }
  if (name == "adamw") return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(1e-3));
  die("--optimizer", "unknown: " + name);
}

Parameters make_parameters(const std::string& workload) {
  Parameters parameters;
  lockstep::bench::run_workload(workload, {.cnn_28 = 1, .mlp_6m = 1, .resnet18_32 = 1, .resnet18_224 = 1},
                                [&](auto model, const auto&) { parameters = model->parameters(); });
  for (torch::Tensor& parameter : parameters) parameter.mutable_grad() = torch::randn_like(parameter);
  return parameters;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of an optimizer");
  lockstep::bench::add_step_options(app, options);
  app.add_option("--optimizer", options.optimizer)->required();
  app.add_flag("--fused", options.fused, "take fused steps");
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Parameters parameters = make_parameters(options.workload);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(options.optimizer, parameters);
  const auto step = [&] {
    if (!options.fused) {
      optimizer->step();
    } else if (!lockstep::fused_step(*optimizer)) {
      die("--fused", "the kernels did not take the step");
    }
  };
  const std::vector<double> seconds = lockstep::bench::time_steps(
      options.steps, [] {}, step);
  std::ofstream(options.output) << nlohmann::json{{"seconds", seconds}};
  return 0;
}
