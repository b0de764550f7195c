// A folder of checkpoints (step-000000042.ckpt and so on) that never loses the last good one.
//
// A checkpoint is written in the same folder under a temporary name, flushed to the disk and renamed. A crash, a full
// disk or a kill therefore leaves the earlier checkpoints as they were. Each file has a checksum over its whole
// content.
//
// One process writes to a folder (rank 0); any number may read it. The writer holds a lock on the file .writer there,
// so that two trainings that use one folder by mistake do not remove each other's checkpoints. Several managers of one
// process may write to one folder: their saves are written one after the other, in the order of their calls. Each
// removes what its own options do not keep. Not thread-safe.
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
  // How many checkpoints are kept: those with the highest steps. Other checkpoints are removed after each save. At
  // least 1. With 2 or more, an older checkpoint remains if the disk damages the newest.
  int keep_last = 3;

  // The checkpoint with the best metric is kept too, whatever its step. Checkpoints without a metric do not compete.
  enum class Best { kHighestMetric, kLowestMetric, kNotKept } best = Best::kHighestMetric;

  // True: save() copies the tensors and returns; a thread writes the copy to the disk. The copy takes as much memory as
  // the state. The manager keeps this memory for the next save, which is then twice as fast, because fresh memory costs
  // more than copying.
  bool asynchronous = false;
};

struct Saving;
class SaveTurn;
class WriterLock;

class CheckpointManager {
 public:
  // Makes the folder if it does not exist. Throws CheckpointError if the folder cannot be made. A folder that this
  // process cannot write to can still be read; take_folder() throws if the process cannot write.
  explicit CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options = {});
  // Waits for the save in progress, and logs its error if it fails. exit() does the same for managers that are local
  // variables, although it does not destroy them.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // Takes the folder for writing. Each save() does this by itself: the first one takes the folder, and a later one
  // takes it again if the folder or its file .writer has been removed or replaced. Call take_folder() at the start of a
  // program that should learn at once whether it can write. The process has the folder until the last of its managers
  // that have taken the folder is destroyed. Waits for the save in progress and throws its error, as wait() does.
  // Throws CheckpointError: kUnavailable, which names the holder, if another process writes to the folder. If the
  // holder is on another machine, waits for up to 2 minutes first, because file servers keep the locks of a dead
  // machine that long.
  void take_folder();

  // Saves under `step`, replaces a checkpoint of the same step, and removes checkpoints that need not be kept.
  // Checkpoints of higher steps belong to a training that was given up for an older checkpoint: they are set aside,
  // with a warning. Blocks until the file is on the disk, after all earlier saves to the folder by managers of this
  // process; with `asynchronous`, until this manager's previous save has finished. Throws CheckpointError, also if the
  // previous save failed: the new checkpoint is then not saved. Any save may wait and throw as take_folder() does.
  void save(std::int64_t step, const Checkpoint& checkpoint, std::optional<double> metric = std::nullopt);
  // Blocks until this manager's saves have finished; a fork does not wait for its parent's saves. Throws the error of
  // the last save, if it failed.
  void wait();

  // Loads the checkpoint with the highest step that can be read; std::nullopt if the folder has no checkpoints at all.
  // A writer may remove and add checkpoints meanwhile. step() of the loaded checkpoint is the step in the file's name.
  // A checkpoint that cannot be read is skipped, with a warning that says why. If no checkpoint can be read, throws the
  // error code that all of them have in common, or kCorrupt if their codes differ.
  std::optional<Checkpoint> load_latest();
  // Loads the same step on every rank: the highest step that all ranks can read. For file systems that show a file to
  // one machine later than to another. `gather` returns the argument of every rank, by rank:
  //
  //   auto state = manager.load_latest([](const auto& steps) { return all_gather_object(steps); });
  //
  // Every rank must call it. If there are checkpoints, but none that all ranks can read: kCorrupt on every rank, with
  // the steps that each rank has.
  using Gather = std::function<std::vector<std::vector<std::int64_t>>(const std::vector<std::int64_t>&)>;
  std::optional<Checkpoint> load_latest(const Gather& gather);
  // Loads the checkpoint with the best metric, in the same way.
  std::optional<Checkpoint> load_best();
  Checkpoint load(std::int64_t step);

  // Moves the files of these steps into a new subfolder, "earlier-1" and so on, and returns this subfolder. The manager
  // never removes files there. Waits and throws as take_folder() does; also throws CheckpointError if the files
  // cannot be moved.
  std::filesystem::path set_aside(const std::vector<std::int64_t>& steps);

  // Steps of the existing files, ascending.
  std::vector<std::int64_t> steps() const;
  std::filesystem::path path_of(std::int64_t step) const;

 private:
  using Best = CheckpointManagerOptions::Best;
  using Steps = std::vector<std::int64_t>;

  void save_in_thread(std::int64_t step, Checkpoint state, std::shared_ptr<const SaveTurn> turn);
  void write(std::int64_t step, const Checkpoint& checkpoint, const SaveTurn& turn);
  void remove_unneeded(std::int64_t just_saved);
  std::filesystem::path move_aside(const Steps& steps);
  void set_aside_higher(std::int64_t step);
  void remove_abandoned();
  std::optional<double> metric_of(std::int64_t step);
  std::vector<std::int64_t> steps_by_metric();
  std::optional<Checkpoint> load_first_good(const std::function<Steps()>& list);

  std::filesystem::path folder_;
  CheckpointManagerOptions options_;
  std::shared_ptr<WriterLock> writer_lock_;      // null before take_folder(), which alone sets it
  std::map<std::string, torch::Tensor> copies_;  // of the last asynchronous save, by name
  std::shared_ptr<Saving> saving_;  // null: no save in progress. The last member, so that it is joined first
};

}  // namespace lockstep::checkpoint
