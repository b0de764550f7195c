// GradScaler: loss scaling, so that small gradients do not become zero in half precision. bfloat16 needs no scaling.
//
//   lockstep::GradScaler scaler;
//   ...
//   {
//     const lockstep::Autocast autocast(torch::kCPU, torch::kHalf);
//     loss = loss_of(ddp->forward(x), y);
//   }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);                // takes no step if a gradient is infinite or NaN
//   scaler.update();
//
// The loss is multiplied by a scale, gradients are divided by it before the optimizer's step. A step whose gradients
// are not finite is skipped, and the scale becomes smaller; after many good steps it becomes larger. Numbers, defaults
// and rules are those of torch.amp.GradScaler.
//
// All ranks of the group skip a step if any rank has such a gradient. So parameters and scales stay equal even where
// gradients differ (ignored parameters, the no-op hook), and either all ranks or none take the collective step of a
// ZeroRedundancyOptimizer. PyTorch's scaler looks at its own rank alone. So step() is collective; if the program calls
// unscale_(), unscale_() is collective instead. Each makes one small all-gather. Nothing is sent without a world, or
// with a group of this rank alone. In join(), ranks that have finished must step too: JoinOptions::after_shadow_pass.
//
// Parameters must be float: gradients in half cannot hold the unscaled values. For a model in half precision
// let the optimizer have MasterWeights (lockstep/nn/mixed_precision.h):
//
//   masters.copy_gradients();
//   scaler.step(optimizer);
//   masters.copy_parameters();
//   scaler.update();
//
// Not thread-safe. Errors are c10::Error.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     // above 1; multiplies the scale after `growth_interval` steps in a row without a skip
  double backoff_factor = 0.5;  // below 1; multiplies the scale after a skipped step
  std::int64_t growth_interval = 2000;
  bool enabled = true;           // off: losses and gradients stay as they are, and every step is taken
  ProcessGroup group = nullptr;  // its ranks skip steps together; null: the world, if there is one
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // Returns outputs * scale, in the dtype of `outputs`. A loss in half overflows at 65504: convert it to float first.
  torch::Tensor scale(const torch::Tensor& outputs) const;
  // Divides the gradients of the optimizer's parameters by the scale, in place, for a program that reads or clips them
  // before the step. At most once between two updates; otherwise step() does it.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Takes the optimizer's step unless a gradient is not finite on any rank; returns whether it was taken. Call it once
  // between two updates. An error if no rank has gradients. After an error it may be called again.
  bool step(torch::optim::Optimizer& optimizer);
  // The same, but calls `take` in place of optimizer.step(), such as fused_step (lockstep/nn/fused_step.h).
  bool step(torch::optim::Optimizer& optimizer, const std::function<void(torch::optim::Optimizer&)>& take);
  // Changes the scale as the options say. Once after the steps of all optimizers. If a step() threw, the steps
  // since the last update do not count as good steps (in PyTorch they do): the scale stays as it is, or becomes smaller
  // if another optimizer skipped its step. If only some ranks call update() then, the ranks' scales may differ later.
  void update();
  // Sets the scale.
  void update(double new_scale);

  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  // For a checkpoint, after update(): the numbers of Python's state_dict(), under Python's names. Equal on all ranks.
  // Empty if it is not enabled.
  std::map<std::string, double> state_dict() const;
  // Loads what state_dict() returned. Throws a ValueError that names a missing entry. Does nothing if it is not
  // enabled.
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepping, kStepped };  // kStepping: still so when the step has thrown
  struct Progress {                                             // of one optimizer since the last update
    Stage stage = Stage::kReady;
    bool has_gradients = false;  // any rank
    bool skip = false;
  };

  GradScalerOptions options_;
  torch::Tensor scale_;           // float, of one number, on the CPU
  torch::Tensor growth_tracker_;  // int: steps in a row without a skip
  std::unordered_map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace lockstep
