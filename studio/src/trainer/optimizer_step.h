// One step of the optimizer, from one or several batches.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/metrics.h"
#include "lockstep/trainer/trainer.h"

namespace lockstep::trainer_detail {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class OptimizerStep {
 public:
  OptimizerStep(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer,
                const TrainerOptions& options, torch::Device device);

  // Takes `parts` batches from the feed. Fills what the report says of the step alone.
  StepReport run(Feed& feed, int parts);

  // The two halves of a step. The first one computes and communicates: the gradients of `passes` batches, each of which
  // `take(pass)` gets, with losses that are divided by `divisor`. It ends with the decision whether the step may be
  // taken. Gradients must be clear before it.
  StepReport compute(Feed& feed, int passes, double divisor, const std::function<void(int pass)>& take);
  // The second one changes the model, and sends nothing. Adds the step's losses to those of take_losses().
  void apply(StepReport& report);
  // Of this rank's batches in the last compute(): the sum of the losses, and the samples. Waits for the device.
  Average step_losses() const;
  // After the world was formed anew. As in set_step().
  void rebuild(std::int64_t step, std::int64_t skipped_in_a_row);

  // The program's step function on the present batch, in the precision of the training.
  StepOutput forward(Feed& feed);

  // The number of the next step, for messages, and how many right before it were skipped.
  void set_step(std::int64_t step, std::int64_t skipped_in_a_row = 0);
  // Collective. Throws on every rank where parameters are not finite on one of them. Nothing without `non_finite`.
  void check_parameters();
  // Of this rank's batches since the last call: the sum of the losses, and the samples.
  Average take_losses();

  std::optional<ExponentialMovingAverage>& averages() { return averages_; }
  std::optional<GradScaler>& scaler() { return scaler_; }

 private:
  bool take();
  void wrap(const DistributedDataParallelOptions& options);
  // Whether the step may be taken. With clipping it has clipped.
  bool clip_and_check(StepReport& report);
  // Seconds that DDP has waited so far; NaN where it does not know.
  double communicated() const;

  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  const TrainerOptions& options_;
  torch::Device device_;
  std::optional<DistributedDataParallel<std::shared_ptr<torch::nn::Module>>> ddp_;
  std::optional<ExponentialMovingAverage> averages_;
  std::optional<GradScaler> scaler_;
  std::optional<FiniteCheck> finite_;
  Clock::time_point start_;
  torch::Tensor step_sum_;  // of the losses of the present step's samples
  std::int64_t step_samples_ = 0;
  bool may_step_ = false;
  torch::Tensor loss_sum_;  // double, on the device: nobody waits for it before the epoch ends
  std::int64_t samples_ = 0;
};

}  // namespace lockstep::trainer_detail
