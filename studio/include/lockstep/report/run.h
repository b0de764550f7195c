// The content of a run's log (run_log.h), read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/report/run_log.h"

namespace lockstep::report {

// One value of a curve.
struct Point {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  double value = 0.0;
};

struct PassRecord {
  std::int64_t epoch = 0;
  double seconds = 0.0;
  std::int64_t samples = 0;
  Scalars scalars = {};
};

struct TimesRecord {
  std::int64_t epoch = 0;
  std::vector<RankTimes> ranks = {};
};

// Counts that are not 0.
struct ConfusionCell {
  std::int64_t label = 0;
  std::int64_t predicted = 0;
  std::int64_t count = 0;
};

struct Note {
  double time = 0.0;  // Unix, seconds
  std::string text = {};
};

enum class RunState { kRunning, kInterrupted, kFinished, kFailed };

// One start of the run. A start with epoch 0 and step 0 is a new run: it replaces earlier starts and their notes.
struct Session {
  double started = 0.0;  // Unix, seconds
  double last_event = 0.0;
  std::string host = {};
  std::int64_t world_size = 1;
  std::int64_t first_epoch = 0;
};

struct RunRecord {
  std::string name = {};
  // kRunning: the file is locked by its writer. kInterrupted: it is not locked, and has no last event.
  RunState state = RunState::kInterrupted;
  std::string error = {};  // the error, if kFailed
  std::vector<std::string> command = {};
  Values configuration = {};  // of the last start, as are versions, classes and command
  Values versions = {};
  std::vector<std::string> classes = {};
  std::vector<Session> sessions = {};
  std::map<std::string, std::vector<Point>> steps = {};  // by name, ordered by step
  std::vector<PassRecord> epochs = {};                   // ordered by epoch, like the next two fields
  std::vector<PassRecord> evaluations = {};
  std::vector<TimesRecord> times = {};
  std::int64_t confusion_epoch = -1;  // the epoch of the last confusion matrix; -1: there is none
  std::int64_t confusion_classes = 0;
  std::vector<ConfusionCell> confusion = {};
  std::vector<Note> notes = {};
  Scalars results = {};
  // Lines that are no events: damaged, nested over 16 levels, or with fields of wrong types. They are left out.
  std::int64_t bad_lines = 0;
};

// Reads a run's folder, or its file. Lines of unknown events are ignored, so that files of later versions can be read.
// Errors: kNotFound, kPermission, kIo; kCorrupt when no line is an event. Blocks for the file.
Result<RunRecord> read_run(const std::filesystem::path& folder_or_file);

// A value that summaries show, from one list of scalars; NaN when it is not there.
double scalar(const Scalars& scalars, std::string_view name);

}  // namespace lockstep::report
