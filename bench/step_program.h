// What the programs that time training steps share: options, workloads by name, and the measurement.
#pragma once

#include <lockstep/models/resnet.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "measure.h"
#include "step_models.h"

namespace lockstep::bench {

struct StepOptions {
  std::string workload;
  int steps = 0;
  std::string output;
};

inline void add_step_options(CLI::App& app, StepOptions& options) {
  app.add_option("--workload", options.workload)->required();
  app.add_option("--steps", options.steps)->required();
  app.add_option("--output", options.output)->required();
}

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
};

inline Batch make_batch(std::int64_t size, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), size);
  return {torch::randn(shape), torch::randint(0, 10, {size}, torch::kLong)};
}

// Images per batch.
struct BatchSizes {
  std::int64_t cnn_28;
  std::int64_t mlp_6m;
  std::int64_t resnet18_32;
  std::int64_t resnet18_224;
  std::int64_t resnet50_224 = 0;  // 0: not for this program
};

// Calls run(model, batch) with the workload of this name. Ends the program if there is none.
template <typename Run>
void run_workload(const std::string& name, const BatchSizes& sizes, Run run) {
  if (name == "cnn-28") {
    run(Cnn(), make_batch(sizes.cnn_28, {1, 28, 28}));
  } else if (name == "mlp-6M") {
    run(Mlp(), make_batch(sizes.mlp_6m, {1, 28, 28}));
  } else if (name == "resnet18-32") {
    run(models::resnet18({.num_classes = 10}), make_batch(sizes.resnet18_32, {3, 32, 32}));
  } else if (name == "resnet18-224") {
    run(models::resnet18({.num_classes = 10}), make_batch(sizes.resnet18_224, {3, 224, 224}));
  } else if (name == "resnet50-224" && sizes.resnet50_224 > 0) {
    run(models::resnet50({.num_classes = 1000}), make_batch(sizes.resnet50_224, {3, 224, 224}));
  } else {
    die("--workload", "unknown: expected cnn-28, mlp-6M, resnet18-32 or resnet18-224 (or resnet50-224 of ddp_step)");
  }
}

// Seconds of each of `steps` calls of step(), after some calls to warm up. before() comes before each, untimed. With
// `together`, so many calls are timed as one and each counts as their mean, because a device works on while the process
// goes on to the next step; after() waits for it.
template <typename Before, typename Step, typename After>
std::vector<double> time_steps(int steps, Before before, Step step, int together, After after) {
  constexpr int kWarmUp = 3;
  std::vector<double> seconds;
  for (int i = -kWarmUp; i < steps; ++i) {
    before();
    const double start = now();
    for (int part = 0; part < together; ++part) step();
    after();
    if (i >= 0) seconds.push_back((now() - start) / together);
  }
  return seconds;
}

template <typename Before, typename Step>
std::vector<double> time_steps(int steps, Before before, Step step) {
  return time_steps(steps, before, step, 1, [] {});
}

}  // namespace lockstep::bench
