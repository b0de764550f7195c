// The log of a training run: a file of JSON lines in the run's folder, one event a line. `lockstep report` makes
// report.html from it, `lockstep scaling` its table, and any program can read it (docs/reports.md has the format).
//
// One rank writes it, usually rank 0. On the others use RunLog(), which writes nothing, so that the loop needs no `if`.
//
//   RunLog log;
//   if (rank == 0) log = data::value_or_throw(RunLog::open("runs/first"));
//   log.start({.configuration = {{"lr", 0.1}, {"model", "resnet18"}}, .world_size = world_size});
//   ...
//   log.step(epoch, step, {{"loss", loss}});
//   ...
//   log.epoch(epoch, {.seconds = seconds, .samples = samples, .scalars = {{"loss", mean_loss}}});
//   ...
//   log.end();
//
// Logging never ends a training. When the disk is full, events are left out, with one warning on stderr; when there is
// room again, later events are written. The file has whole lines only; the last line of a killed process may be cut
// off, and the next RunLog of the folder removes it. A run that goes on in the same folder appends to the same file;
// epochs and steps that it repeats replace the earlier ones (RunStart::first_epoch).
//
// All functions may be called from several threads, and block for one write to the file. Nothing is flushed to the
// disk: events of a killed process stay, events of a machine that loses its power may be lost. In a fork of its
// process a RunLog writes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/report/values.h"

namespace lockstep::report {

inline constexpr std::string_view kRunLogName = "run.jsonl";

// Returns the folder that the launcher of this run asks for (LOCKSTEP_RUN_FOLDER, which `lockstep scaling` sets), else
// `configured`.
std::filesystem::path run_folder(const std::filesystem::path& configured);

struct RunStart {
  std::string name = {};      // the title of the report. Empty: the name of the folder
  Values configuration = {};  // everything that is needed to repeat the run
  Values versions = {};       // versions of libraries, for example {{"torch", TORCH_VERSION}}; Lockstep's own is added
  std::int64_t world_size = 1;
  std::vector<std::string> classes = {};  // names of the classes, for the confusion matrix
  // The epoch and the step with which a resumed run begins. Earlier events of this epoch and step, and of all later
  // epochs and steps, no longer count: they were not in the checkpoint. So a run that starts from the beginning (0)
  // replaces an earlier run in its folder.
  std::int64_t first_epoch = 0;
  std::int64_t first_step = 0;
};

// A pass over the training data, or an evaluation.
struct Pass {
  double seconds = 0.0;
  std::int64_t samples = 0;  // samples of all ranks together
  Scalars scalars = {};      // usually "loss" and "accuracy" (0 to 1); use the same names in training and evaluation
};

// Where the time of one rank went in an epoch. "input", "compute" and "communication" are known parts, which come first
// in pictures; others may have any name ("checkpoint"). A rank waits for slower ones in "communication".
struct RankTimes {
  int rank = 0;
  std::string host = {};
  Scalars seconds = {};
};

class RunLog {
 public:
  RunLog();  // writes nothing
  // Opens folder/run.jsonl, and makes the folder if it is missing. Removes an unfinished last line, as a loss of power
  // may leave it. Errors: kPermission, kNotFound, kIo; kInvalidArgument if run.jsonl exists and is no file;
  // kUnavailable if another process writes this log.
  static Result<RunLog> open(const std::filesystem::path& folder);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  // Without end() or fail() before it, the report says that the run was interrupted.
  ~RunLog();

  // The first event. Host, process, command line and time are added.
  void start(const RunStart& start);
  // `epoch` counts from 0; `step` counts optimizer steps from 0 over the whole run, not from each epoch. Logging every
  // step is fine: an event costs some microseconds, and a hundred to two hundred bytes.
  void step(std::int64_t epoch, std::int64_t step, const Scalars& scalars);
  void epoch(std::int64_t epoch, const Pass& training);
  void evaluation(std::int64_t epoch, const Pass& evaluation);
  void times(std::int64_t epoch, std::span<const RankTimes> ranks);
  // `counts` is square, row by row: counts[label * classes + predicted]. If RunStart::classes were given, its
  // size must be their number squared (else the event is left out, with a warning). Only counts that are not 0 are
  // stored.
  void confusion(std::int64_t epoch, std::span<const std::int64_t> counts);
  // A line for people: "resumed from epoch-4.ckpt", "skipped corrupt picture ...".
  void note(std::string_view text);
  // The last event: the run has finished, with these results, or has failed.
  void end(const Scalars& results = {});
  void fail(std::string_view error);

  // The first error of a write since open(); later events may have been written.
  Status status() const;
  // The file; empty when nothing is written.
  std::filesystem::path path() const;

 private:
  class Writer;
  explicit RunLog(std::unique_ptr<Writer> writer);

  std::unique_ptr<Writer> writer_;
};

}  // namespace lockstep::report
