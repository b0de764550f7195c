// A folder of checkpoints, step-000000042.ckpt and so on, of which the last good one is never lost.
//
// A checkpoint is written beside the others under a temporary name, flushed to the disk and renamed, so a crash, a full
// disk or a kill at any moment leaves the earlier ones as they were. Each has a checksum over all of it.
//
// One process writes to a folder (rank 0); any number may read it. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::checkpoint {

struct CheckpointManagerOptions {
  // How many of the highest steps stay; older files are removed after each save. At least 1; 2 or more so that there is
  // one to fall back to should the disk damage the newest.
  int keep_last = 3;

  // The checkpoint with the best metric stays too, whatever its step. Nothing for checkpoints without a metric.
  enum class Best { kHighestMetric, kLowestMetric, kNotKept } best = Best::kHighestMetric;

  // save() copies the tensors and returns; a thread writes them. Costs the state's size in memory.
  bool asynchronous = false;
};

class CheckpointManager {
 public:
  // Makes the folder when it is not there. Throws CheckpointError when it cannot be made or written to, so that this is
  // known before the first epoch has been spent.
  explicit CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options = {});
  // Finishes the save in progress; its error, should nobody have asked for it, is logged.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // Saves under `step`, replacing a checkpoint of the same step, and removes those that need not stay. Blocks until the
  // disk has it; when asynchronous, until the previous save has finished. Throws CheckpointError, also for the previous
  // save when that failed.
  void save(std::int64_t step, const Checkpoint& checkpoint, std::optional<double> metric = std::nullopt);
  // Blocks until all saves have finished. Throws what the last one failed with.
  void wait();

  // The good checkpoint with the highest step; std::nullopt when there are no checkpoints at all. Those that cannot be
  // read, for whatever reason, are named in the log with it and passed over; when none can, throws what they failed
  // with (kCorrupt when reasons differ).
  std::optional<Checkpoint> load_latest();
  // The one with the best metric, in the same way.
  std::optional<Checkpoint> load_best();
  Checkpoint load(std::int64_t step);

  // Steps of the files that are there, ascending.
  std::vector<std::int64_t> steps() const;
  std::filesystem::path path_of(std::int64_t step) const;

 private:
  using Best = CheckpointManagerOptions::Best;

  void write(std::int64_t step, const Checkpoint& checkpoint);
  void remove_unneeded(std::int64_t just_saved);
  void remove_abandoned();
  std::optional<double> metric_of(std::int64_t step);
  std::vector<std::int64_t> steps_by_metric();
  std::optional<Checkpoint> load_first_good(const std::vector<std::int64_t>& candidates);

  std::filesystem::path folder_;
  CheckpointManagerOptions options_;
  std::map<std::int64_t, std::optional<double>> metrics_;  // as far as known
  std::future<void> saving_;                               // result of the save in progress, if there is one
  std::jthread thread_;                                    // of that save; last, so that it is joined first
};

}  // namespace lockstep::checkpoint
