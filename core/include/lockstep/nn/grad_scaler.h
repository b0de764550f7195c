// GradScaler: loss scaling, so that small gradients do not become zero in half precision. bfloat16 needs none.
//
//   lockstep::GradScaler scaler;
//   ...
//   {
//     const lockstep::Autocast autocast(torch::kCPU, torch::kHalf);
//     loss = loss_of(ddp->forward(x), y);
//   }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);                // without the step, if a gradient is infinite or NaN
//   scaler.update();
//
// The loss is multiplied by a scale, gradients are divided by it before the optimizer's step. A step whose gradients
// are not finite is skipped, and the scale becomes smaller; after many good steps it becomes larger. Numbers, defaults
// and rules are those of torch.amp.GradScaler.
//
// Every rank of the group skips a step if any of them has such a gradient: then parameters and scales stay equal also
// where gradients are not (ignored parameters, local SGD), and an optimizer whose step is collective
// (ZeroRedundancyOptimizer) gets all ranks or none. PyTorch's scaler looks at its own rank alone. So step() is
// collective, or unscale_() where the program calls it: one small all-gather. Nothing is sent without a world, or with
// a group of this rank alone. In join(), ranks that have finished must step too: JoinOptions::after_shadow_pass.
//
// Parameters must be float: gradients in half cannot hold what unscaling makes of them. For a model in half precision
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
  double growth_factor = 2;     // above 1; after `growth_interval` steps in a row without a skipped one
  double backoff_factor = 0.5;  // below 1; after a skipped step
  std::int64_t growth_interval = 2000;
  bool enabled = true;           // off: losses and gradients stay as they are, and every step is taken
  ProcessGroup group = nullptr;  // whose ranks skip steps together; null: the world, if there is one
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // outputs * scale, of the dtype of `outputs`. A loss in half overflows at 65504: make it float before.
  torch::Tensor scale(const torch::Tensor& outputs) const;
  // Divides the gradients of the optimizer's parameters by the scale, in place, for a program that reads or clips them
  // before the step. At most once between two updates; otherwise step() does it.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Takes the optimizer's step unless a gradient is not finite on any rank; returns whether it did. Once between two
  // updates. An error if no rank has gradients. After an error it may be called again.
  bool step(torch::optim::Optimizer& optimizer);
  // The same with `take` in place of optimizer.step(), such as fused_step (lockstep/nn/fused_step.h).
  bool step(torch::optim::Optimizer& optimizer, const std::function<void(torch::optim::Optimizer&)>& take);
  // Changes the scale as the options say. Once after the steps of all optimizers. After a step() that threw, the steps
  // since the last update do not count as good ones (they do in PyTorch): the scale stays as it is, or becomes smaller
  // if another optimizer skipped its step. If only some ranks call it then, their scales may differ later.
  void update();
  // Sets the scale.
  void update(double new_scale);

  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  // For a checkpoint, after update(): the numbers of Python's state_dict() by their names there. Equal on all ranks.
  // Empty if it is not enabled.
  std::map<std::string, double> state_dict() const;
  // Takes them over. Throws a ValueError that names what is missing. Does nothing if it is not enabled.
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
  torch::Tensor growth_tracker_;  // int: steps in a row without a skipped one
  std::unordered_map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace lockstep
