// ExponentialMovingAverage: a smoothed copy of a model's values, which often evaluates better than the last step's.
//
//   lockstep::ExponentialMovingAverage ema(*net, {.decay = 0.999});
//   ...
//   optimizer.step();
//   ema.update();
//   ...
//   {
//     const auto guard = ema.swap_in();   // the module computes with the averages
//     evaluate(net);
//   }                                     // and here with its own values again
//
// After each update: average = decay * average + (1 - decay) * value. The first update copies. This is PyTorch's
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn and use_buffers=True, with two differences. Averages of
// half and bfloat16 values are kept as float, because small changes would be lost in their own type. Integer buffers
// are copied. (PyTorch's default, use_buffers=False, leaves buffers as they are: `use_buffers` off.)
//
// Under DistributedDataParallel every rank has the same values, so every rank computes the same averages: nothing is
// sent. A join needs update() in JoinOptions::after_shadow_pass for that; docs/training_helpers.md says how to send the
// averages after a join without it. Takes the memory of the module's values, and once more while they are swapped in.
// Not thread-safe.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep {

struct ExponentialMovingAverageOptions {
  double decay = 0.999;  // 0 to 1
  // Off: the module's buffers (running means) stay its own while averages are swapped in.
  bool use_buffers = true;
};

class ExponentialMovingAverage {
 public:
  // `module` must outlive this object. Its parameters and buffers may change in value, not in number or shape.
  explicit ExponentialMovingAverage(const torch::nn::Module& module,
                                    const ExponentialMovingAverageOptions& options = {});

  // Call it after each step of the optimizer.
  void update();
  std::int64_t updates() const { return updates_; }

  // Gives the module the averages, until the guard is destroyed.
  class Guard {
   public:
    explicit Guard(ExponentialMovingAverage& average) : average_(average) { average_.swap(); }
    ~Guard() { average_.swap_back(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    ExponentialMovingAverage& average_;
  };
  [[nodiscard]] Guard swap_in() { return Guard(*this); }

  // The averages by the names of the module, for a checkpoint (checkpoint::TensorFile). Not copied.
  std::map<std::string, torch::Tensor> tensors() const;
  // Loads saved averages. Throws a ValueError that lists names and shapes that do not fit.
  void load(const std::map<std::string, torch::Tensor>& tensors, std::int64_t updates);

 private:
  void swap();
  void swap_back() noexcept;
  std::vector<NamedParameter> values_now() const;
  bool same_tensors() const;
  // Puts the module's tensors into values_. Throws if the module has other parameters or buffers than at first.
  void find_values();

  const torch::nn::Module& module_;
  const ExponentialMovingAverageOptions options_;
  std::vector<NamedParameter>
      values_;  // the module's tensors; looked up again only when they change, because names take time
  std::vector<NamedParameter> averages_;
  std::vector<torch::Tensor> own_;  // the module's values while the averages are swapped in
  std::int64_t updates_ = 0;
};

}  // namespace lockstep
