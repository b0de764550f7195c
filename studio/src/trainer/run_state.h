// How far a training has come, and its checkpoints.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/metrics.h"
#include "lockstep/trainer/trainer.h"
#include "optimizer_step.h"

namespace lockstep::trainer_detail {

struct Progress {
  std::int64_t epoch = 0;  // the present one, or the next
  std::int64_t step = 0;   // that are done
  Average losses;          // of the present epoch: of this rank, and on rank 0 what was saved. Elastic: of all ranks
  std::optional<double> best;
  std::optional<double> to_beat;   // by more than min_delta: the last one that did so
  std::int64_t not_better = 0;     // evaluations in a row that did not
  bool evaluation_due = false;     // the epoch before the present one has not been evaluated
  std::int64_t evaluated = 0;      // epochs that were done at the last evaluation
  bool earlier_in_folder = false;  // what the folder has is another training's; the same on all ranks
};

// Of an epoch with so many batches: those that are trained.
inline std::int64_t limited(std::int64_t batches, const TrainerOptions& options) {
  return options.limit_batches > 0 ? std::min(batches, options.limit_batches) : batches;
}

// Of all ranks. Does not throw where no rank has a sample, as Average::compute() does. Collective.
Average of_all(const Average& mine);

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
  // For a training that starts from the beginning: its first save moves the checkpoints of another one into a folder of
  // their own, because their steps may be higher and their metrics better. Not sooner: a training that fails before it
  // has anything to save must not hide them from the next one that resumes.
  void begin_anew() { progress.earlier_in_folder = true; }
  // After the world was formed anew: another rank may write now.
  void rebuild();
  bool load_best();
  // Writes TrainerOptions::model_file; `found`: the evaluation of `epoch`, if there was one. Collective.
  void save_model(std::int64_t epoch, const Evaluation* found);
  // Blocks until asynchronous saves are done. Collective.
  void wait();

  // Whether the folder has no checkpoints of an earlier training any more. For ranks that get their state from another.
  bool folder_is_own() const { return folder_is_own_; }
  void set_folder_is_own(bool is_own) { folder_is_own_ = is_own; }

  Progress progress;

 private:
  void write(const data::DataLoaderBase& loader, std::optional<double> metric);
  void add_progress(checkpoint::Checkpoint& state);
  void check_classes(const checkpoint::Checkpoint& state) const;
  void check_trained(const checkpoint::Checkpoint& state) const;
  void restore(const checkpoint::Checkpoint& state, data::DataLoaderBase& loader);
  void restore_schedule(const checkpoint::Checkpoint& state, const std::vector<double>& first_rates,
                        std::int64_t position);
  std::int64_t steps_of(std::int64_t batches) const;
  // For a checkpoint whose evaluations were judged by something else. Collective.
  void judge_again(const data::DataLoaderBase& loader);
  void take_folder();
  // For rank 0.
  void set_earlier_aside();

  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  const TrainerOptions& options_;
  torch::Device device_;
  OptimizerStep& step_;
  std::unique_ptr<checkpoint::CheckpointManager> manager_;
  bool folder_is_own_ = false;
};

}  // namespace lockstep::trainer_detail
