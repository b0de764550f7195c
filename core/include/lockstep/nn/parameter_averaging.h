// Local SGD: ranks train by themselves and average their parameters now and then. Less communication for less exact
// steps.
//
//   lockstep::PeriodicModelAverager averager({.period = 4, .warmup_steps = 100});
//   ddp.register_comm_hook(lockstep::make_post_local_sgd_hook({.start_local_sgd_iter = 100}));
//   ...
//   optimizer.step();
//   averager.average_parameters(ddp.parameters());
//
// The first 100 steps are ordinary steps; then the hook sends no gradients, and every fourth step ends with the mean of
// all parameters. From T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD" (2018). PyTorch:
// torch.distributed.algorithms.model_averaging and post_localSGD_hook.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/nn/comm_hook.h"

namespace lockstep {

// Each tensor becomes its mean over the ranks of the group. Collective; blocks. All ranks pass the same dense
// tensors in the same order; a tensor that is in the list twice counts once. Takes the memory of the tensors once more
// until it returns. Throws what the collectives throw.
void average_parameters(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group = nullptr);

struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;        // steps from one average to the next; 1 sends as much as gradients would
  std::int64_t warmup_steps = 0;  // steps before the first average
  ProcessGroup group = nullptr;   // null: the world
};

class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  // Call it on every rank after each step of the optimizer. Averages in step number warmup_steps and in every period-th
  // step after it, counted from 0. Returns whether it has averaged. Parameters that require no gradient are left out.
  bool average_parameters(const std::vector<torch::Tensor>& parameters);

  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }  // after resuming

 private:
  const PeriodicModelAveragerOptions options_;
  std::int64_t step_ = 0;
};

struct PostLocalSgdOptions {
  // The number of first passes that average gradients over all ranks. Give the averager's warmup_steps.
  std::int64_t start_local_sgd_iter = 0;
  // Later passes average gradients over these ranks alone, such as those of one machine. Null: every rank keeps its
  // own gradients. (PyTorch makes a group of each machine's ranks if there is none.)
  ProcessGroup subgroup = nullptr;
  ProcessGroup group = nullptr;  // of the first passes; null: the wrapper's group
};

std::shared_ptr<CommHook> make_post_local_sgd_hook(const PostLocalSgdOptions& options);

}  // namespace lockstep
