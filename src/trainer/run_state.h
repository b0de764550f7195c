// How far a training has come, and its checkpoints.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/metrics.h"
#include "lockstep/trainer/trainer.h"
#include "optimizer_step.h"

namespace lockstep::trainer_detail {

struct Progress {
  std::int64_t epoch = 0;  // the present one, or the next
  std::int64_t step = 0;   // that are done
  Average losses;          // of the present epoch: of this rank, and on rank 0 what was saved
  std::optional<double> best;
  std::int64_t not_better = 0;  // evaluations since the best one
  bool evaluation_due = false;  // the epoch before the present one has not been evaluated
};

// Calls `work` on rank 0. Its CheckpointError is thrown on every rank. Collective.
void on_rank_0(const std::function<void()>& work);

class RunState {
 public:
  RunState(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer, const TrainerOptions& options,
           torch::Device device, OptimizerStep& step);

  // Collective: throws on every rank when rank 0 cannot save. Nothing without a folder.
  void save(const data::DataLoaderBase& loader, std::optional<double> metric = std::nullopt);
  // Collective. False when there is no checkpoint.
  bool resume(data::DataLoaderBase& loader);
  bool load_best();
  // Blocks until asynchronous saves are done. Collective.
  void wait();

  Progress progress;

 private:
  void add_progress(checkpoint::Checkpoint& state);
  void restore(const checkpoint::Checkpoint& state, data::DataLoaderBase& loader);

  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  const TrainerOptions& options_;
  torch::Device device_;
  OptimizerStep& step_;
  std::unique_ptr<checkpoint::CheckpointManager> manager_;
};

}  // namespace lockstep::trainer_detail
