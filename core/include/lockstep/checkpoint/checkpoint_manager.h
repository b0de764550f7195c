// A folder of checkpoints (step-000000042.ckpt and so on) that never loses the last good one.
//
// A checkpoint is written in the same folder under a temporary name, flushed to the disk and renamed. A crash, a full
// disk or a kill therefore leaves the earlier ones as they were. Each has a checksum over its whole content.
//
// One process writes to a folder (rank 0); any number may read it. The writer holds a lock on the file .writer there,
// so that two trainings with one folder by mistake do not remove each other's checkpoints. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::checkpoint {

struct CheckpointManagerOptions {
  // How many checkpoints with the highest steps are kept; others are removed after each save. At least 1. With 2 or
  // more, an older one is left if the disk damages the newest.
  int keep_last = 3;

  // The checkpoint with the best metric is kept too, whatever its step. Checkpoints without a metric do not compete.
  enum class Best { kHighestMetric, kLowestMetric, kNotKept } best = Best::kHighestMetric;

  // save() copies the tensors and returns; a thread writes them. The copy takes as much memory as the state, and the
  // manager keeps it for the next save, which is then twice as fast: fresh memory costs more than copying.
  bool asynchronous = false;

  // When asynchronous: the copies too are made by the thread, beside the next forward and backward pass, and save()
  // copies only what these may change: buffers, generators, tensors on devices. Parameters and the optimizer's state
  // must then not change before wait_copied() has returned. Call it before each optimizer.step().
  bool overlap_copy = false;
};

struct PendingCopy;
struct Saving;
class WriterLock;

class CheckpointManager {
 public:
  // Makes the folder if it does not exist. Throws CheckpointError when the folder cannot be made. One that cannot be
  // written to can still be read: take_folder() says whether this process can write.
  explicit CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options = {});
  // Waits for the save in progress, and logs its error if it fails. So does exit(), which does not destroy managers
  // that are local variables.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // Takes the folder for writing until the manager is destroyed, as the first save() does by itself: call it where a
  // program should know at its start. Throws CheckpointError: kUnavailable, with the holder, when another process
  // writes there. One of another machine is waited for, up to 2 minutes: file servers keep the locks of machines that
  // have died that long.
  void take_folder();

  // Saves under `step`, replaces a checkpoint of the same step, and removes those that need not be kept. Those of
  // higher steps are of a training that was given up for an older checkpoint: they are set aside, with a warning.
  // Blocks until the file is on the disk; when asynchronous, until the previous save has finished. Throws
  // CheckpointError, also when the previous save failed: the new one is then not saved. The first save also throws what
  // take_folder() throws.
  void save(std::int64_t step, const Checkpoint& checkpoint, std::optional<double> metric = std::nullopt);
  // Blocks until the last save has copied everything, so that parameters and the optimizer may change. Returns at once
  // unless `overlap_copy` is set. A save that finds that something has changed too early fails: the next save() or
  // wait() says so.
  void wait_copied();
  // Blocks until all saves of this process have finished; a fork does not wait for those of its parent. Throws the
  // error of the last one, if it failed.
  void wait();

  // Loads the checkpoint with the highest step that can be read; std::nullopt when there are no checkpoints at all. A
  // writer may remove and add checkpoints meanwhile. step() of what is loaded is that of the file's name.
  // Each one that cannot be read is skipped, with a warning that says why. When none can be read, throws their common
  // error code (kCorrupt when the codes differ).
  std::optional<Checkpoint> load_latest();
  // The same step on every rank, for file systems that show a file to one machine later than to another: the highest
  // that all ranks can read. `gather` returns what each rank has given it, by rank:
  //
  //   auto state = manager.load_latest([](const auto& steps) { return all_gather_object(steps); });
  //
  // Every rank must call it. kCorrupt on every rank, with the steps that each rank has, when there are checkpoints but
  // none that all can read.
  using Gather = std::function<std::vector<std::vector<std::int64_t>>(const std::vector<std::int64_t>&)>;
  std::optional<Checkpoint> load_latest(const Gather& gather);
  // Loads the checkpoint with the best metric, in the same way.
  std::optional<Checkpoint> load_best();
  Checkpoint load(std::int64_t step);

  // Moves the files of these steps into a new folder in this one, "earlier-1" and so on, and returns it. Nothing
  // removes them there. Throws CheckpointError when they cannot be moved, and what take_folder() throws.
  std::filesystem::path set_aside(const std::vector<std::int64_t>& steps);

  // Steps of the existing files, ascending.
  std::vector<std::int64_t> steps() const;
  std::filesystem::path path_of(std::int64_t step) const;

 private:
  using Best = CheckpointManagerOptions::Best;
  using Steps = std::vector<std::int64_t>;

  void save_in_thread(std::int64_t step, Checkpoint state, std::vector<PendingCopy> pending);
  void write(std::int64_t step, const Checkpoint& checkpoint);
  void remove_unneeded(std::int64_t just_saved);
  void set_aside_higher(std::int64_t step);
  void remove_abandoned();
  std::optional<double> metric_of(std::int64_t step);
  std::vector<std::int64_t> steps_by_metric();
  std::optional<Checkpoint> load_first_good(const std::function<Steps()>& list);

  std::filesystem::path folder_;
  CheckpointManagerOptions options_;
  std::shared_ptr<WriterLock> writer_lock_;                // null before the first save
  std::map<std::int64_t, std::optional<double>> metrics_;  // of the steps whose file the writer has saved or read
  std::map<std::string, torch::Tensor> copies_;            // of the last asynchronous save, by name
  std::shared_ptr<Saving> saving_;                         // null when there is none; last, so that it is joined first
};

}  // namespace lockstep::checkpoint
