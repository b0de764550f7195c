// What a Trainer tells the program, and what a step of the program tells the Trainer.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// The result of one forward pass. A step function may return a loss alone.
struct StepOutput {
  StepOutput(torch::Tensor the_loss, torch::Tensor the_scores = {})  // NOLINT: implicit on purpose
      : loss(std::move(the_loss)), scores(std::move(the_scores)) {}

  // One number: the mean over the samples of the batch.
  torch::Tensor loss;
  // {N, C}: a score for each class. If it is defined, evaluations compute accuracies.
  torch::Tensor scores;
  // The class of each sample, {N}. Undefined: the target of the data::Example.
  torch::Tensor labels = {};
  // The number of samples. -1: the length of the data::Example. For batches of other types it must be set.
  std::int64_t samples = -1;
};

// One step of the optimizer. Every rank gets a report; values are this rank's where nothing else is said.
struct StepReport {
  std::int64_t epoch = 0;    // from 0
  std::int64_t step = 0;     // number of the step in the whole training, from 1; the same on all ranks
  std::int64_t batch = 0;    // number of batches of this epoch that are done
  std::int64_t batches = 0;  // number of batches of this epoch
  std::int64_t samples = 0;  // samples of this rank in this step
  torch::Tensor loss;        // mean over the step's batches, one number without graph, on the device: reading waits
  double learning_rate = 0;  // the first parameter group's rate in this step
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // norm before clipping; NaN without clip_grad_norm
  bool skipped = false;      // the optimizer took no step: loss or gradients were not finite
  double seconds = 0;        // time of the whole step
  double input_seconds = 0;  // time spent waiting for batches
  // The time that DistributedDataParallel has spent on communication and could not overlap with the backward pass;
  // waiting for slower ranks is part of it (Reducer::CommTime::exposed_comm_time). NaN on GPUs, where the GPU waits and
  // not the process.
  double communication_seconds = 0;
};

// The training part of an epoch. All values but the times are the same on all ranks.
struct EpochReport {
  std::int64_t epoch = 0;
  std::int64_t step = 0;     // number of the last step
  std::int64_t samples = 0;  // samples of all ranks since the training was started or resumed
  // Mean over all samples of the epoch on all ranks, without the samples of skipped steps. NaN: every step was skipped.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double learning_rate = 0;
  double seconds = 0;
  double input_seconds = 0;
  double communication_seconds = 0;  // as in StepReport, plus the small collectives of the Trainer after each step

  // Where the time of this rank went, for report::RankTimes: "input", "compute" and, with other ranks, "communication".
  // On GPUs the last two cannot be told apart: "compute and communication".
  std::vector<std::pair<std::string, double>> seconds_by_part(int world_size) const;
};

// Exact over all ranks if the loader is `exact`. All values but the time are the same on all ranks.
struct Evaluation {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t samples = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  // An accuracy for each k of TrainerOptions::top_k; empty if steps give no scores. A sample whose scores hold a NaN
  // counts as a wrong answer, here and in `confusion`.
  std::vector<double> accuracies;
  torch::Tensor confusion;  // int64 {C, C}, if TrainerOptions::confusion_classes is set
  bool is_best = false;     // the best of all evaluations so far, by TrainerOptions::monitor
  double seconds = 0;
};

// A checkpoint that is on the disk; with asynchronous checkpoints, a checkpoint that is being written.
struct CheckpointReport {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::filesystem::path path;
};

// With TrainerOptions::elastic: the ranks go on in a world that was formed anew, because a rank has died or a newcomer
// has joined. get_rank() and get_world_size() are those of the new world.
struct RecoveryReport {
  std::int64_t epoch = 0;
  std::int64_t step = 0;    // how many steps are done; the callbacks of the last one may be called again
  bool has_joined = false;  // this process is a newcomer, and has just taken the place of a dead rank
  std::string reason = {};  // the error that told of the death; empty where a newcomer has joined without one
};

// Functions of the program that the Trainer calls. Each is called on every rank, in the thread of the training, and may
// make collective calls. An exception ends the training. If only some ranks throw, the other ranks get the error that
// they get when a rank fails.
struct TrainerCallbacks {
  std::function<void(const StepReport&)> on_step_end = {};
  std::function<void(const EpochReport&)> on_epoch_end = {};  // before the evaluation
  std::function<void(const Evaluation&)> on_evaluation = {};
  // After each save: an epoch is saved before its evaluation and again after it.
  std::function<void(const CheckpointReport&)> on_checkpoint = {};
  // Before the first step, or callback, in the new world.
  std::function<void(const RecoveryReport&)> on_recovery = {};
};

enum class TrainingEnd {
  kFinished,      // all epochs are done
  kEarlyStopped,  // the last TrainerOptions::patience evaluations were not better
  kInterrupted,   // a signal asked for it (or Trainer::stop)
  kNotNeeded,     // TrainerOptions::newcomer: the training has ended without this process
};

struct TrainingResult {
  TrainingEnd end = TrainingEnd::kFinished;
  int signal = 0;           // the signal of kInterrupted; 0 for Trainer::stop. The same on all ranks
  std::int64_t epochs = 0;  // number of epochs done, with the epochs before a resumption
  std::int64_t steps = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // mean loss of the last epoch that this call trained
  std::optional<Evaluation> evaluation = {};               // the last evaluation of this call
  std::optional<double> best_metric = {};  // best value of TrainerOptions::monitor in the whole training
};

}  // namespace lockstep
