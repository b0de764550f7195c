// fit() that outlives ranks: the Trainer's loop in the steps of an ElasticTraining.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>

#include "lockstep/elastic/elastic_training.h"
#include "loop.h"

namespace lockstep {
namespace trainer_detail {

// Whether the launcher has started this process as a newcomer, which has not joined yet.
bool awaited_by_launcher(const TrainerOptions& options);

// Throws for options that TrainerOptions::elastic excludes.
void check_elastic(const TrainerOptions& options);

// How far the training has come, the same on all ranks.
struct Moment {
  Progress progress;
  std::int64_t batches = 0;  // of an epoch, in each micro-batch
  std::int64_t batch = 0;    // those of the present epoch that are done
  std::int64_t samples = 0;  // of the present epoch, on all ranks
  int asked = 0;             // to stop
  std::int64_t skipped = 0;  // steps in a row, up to the last one
  StepReport step;           // the last one
  TrainingResult result;
};

}  // namespace trainer_detail

class Trainer::Loop::Elastic {
 public:
  Elastic(Loop& loop, Feed& train, Feed* evaluation);
  TrainingResult fit();

 private:
  void add_states();
  void rebuild();
  void tell_of_recovery(bool has_joined);
  void begin_epoch();
  std::int64_t steps_left() const;
  std::int64_t steps_of(std::int64_t batches) const;
  void compute(ElasticStep& step);
  void update();
  void after_step();
  void end_epoch();
  void finish_pass();
  void close_epoch();
  std::optional<TrainingEnd> begin();
  void end(TrainingEnd why);
  void save_within_epoch();
  void hold_position() const;
  void restore(const trainer_detail::Moment& moment);
  void save_moments(checkpoint::Checkpoint& state) const;
  void load_moments(const checkpoint::Checkpoint& state);

  Loop& loop_;
  Feed& train_;
  Feed* evaluation_;
  const TrainerOptions& options_;
  ElasticTraining training_;
  // Of rebuild(): whether it was called, and how often the world had been formed anew at its last call.
  bool rebuilt_ = false;
  int recoveries_told_ = 0;
  // A step has changed `now_` when its update is over, and after_step() changes it further. A death in after_step()
  // takes all ranks back to `before_`.
  trainer_detail::Moment now_;
  trainer_detail::Moment before_;
  // Of the step that is being made.
  StepReport report_;
  int parts_ = 0;
  std::vector<double> totals_;  // over all ranks: losses, samples, the greatest reason to stop
  // Of the present epoch, on this rank.
  EpochReport epoch_;
  trainer_detail::Clock::time_point epoch_start_;
};

}  // namespace lockstep
