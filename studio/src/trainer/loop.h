// The parts of a Trainer, and the loop over epochs.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/trainer/trainer.h"
#include "optimizer_step.h"
#include "run_state.h"
#include "stop.h"

namespace lockstep {
class Trainer::Loop {
 public:
  using Feed = trainer_detail::Feed;

  Loop(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer, TrainerOptions options);

  TrainingResult fit(Feed& train, Feed* evaluation);
  Evaluation evaluate(Feed& feed);

  bool load_best() { return state_.load_best(); }
  void stop() noexcept { stop_ = true; }
  const trainer_detail::Progress& progress() const { return state_.progress; }
  torch::Device device() const { return device_; }

 private:
  class Elastic;  // fit() that outlives ranks

  void start(Feed& train, Feed* evaluation);
  std::optional<TrainingEnd> end_after_epoch(Feed& train, Feed* evaluation, TrainingResult& result);
  // False: it was asked to stop within the epoch.
  bool train_epoch(Feed& feed, EpochReport& epoch);
  void end_epoch(Feed& feed, Feed* evaluation, const EpochReport& report, TrainingResult& result);
  void judge(Feed& train, Feed& evaluation, TrainingResult& result);
  double monitored(const Evaluation& evaluation) const;
  bool asked_to_stop(bool within_epoch = false);
  void hold(Feed& feed);
  bool rewind(Feed& feed) const;
  void go_back(Feed& feed, bool is_held) const;
  TrainingResult finish(TrainingEnd end, TrainingResult result);

  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  const TrainerOptions options_;
  const torch::Device device_;
  trainer_detail::OptimizerStep step_;
  trainer_detail::RunState state_;
  bool started_ = false;
  std::optional<std::string> held_;  // the cursor of a training loader that hold() has left within an epoch
  std::atomic<bool> stop_{false};
  trainer_detail::StopVote vote_;
  int asked_ = 0;  // what all ranks know: 0, or 1 + the signal
};

}  // namespace lockstep
