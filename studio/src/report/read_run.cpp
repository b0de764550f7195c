#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "base/regular_file.h"
#include "lockstep/report/run.h"
#include "report/json.h"

namespace lockstep::report {
namespace {

// A line of a log is never longer; a file of another kind may be one endless line.
constexpr std::size_t kLongestLine = std::size_t{1} << 26;

// All of these throw Json::exception for a field of a wrong type: the line is then no event.
std::int64_t integer(const Json& event, const char* key, std::int64_t missing = 0) {
  const auto found = event.find(key);
  if (found == event.end()) return missing;
  if (!found->is_number_integer() || *found < 0) return Json().get<std::int64_t>();  // throws
  return found->get<std::int64_t>();
}

double number(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found == event.end() ? 0.0 : from_json_number(*found);
}

std::string text(const Json& event, const char* key) {
  return event.value(key, std::string());
}

Scalars scalars(const Json& event, const char* key) {
  Scalars list;
  const auto found = event.find(key);
  if (found == event.end()) return list;
  for (const auto& [name, value] : found->items()) list.emplace_back(name, from_json_number(value));
  return list;
}

Values values(const Json& event, const char* key) {
  Values list;
  const auto found = event.find(key);
  if (found == event.end()) return list;
  for (const auto& [name, value] : found->items()) {
    if (value.is_boolean()) {
      list.emplace_back(name, value.get<bool>());
    } else if (value.is_number_integer()) {
      list.emplace_back(name, value.get<std::int64_t>());
    } else if (value.is_number()) {
      list.emplace_back(name, value.get<double>());
    } else {
      list.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return list;
}

template <typename Records>
void drop_from(std::int64_t epoch, Records& records) {
  std::erase_if(records, [&](const auto& record) { return record.epoch >= epoch; });
}

// A later record of the same epoch replaces the earlier one.
template <typename Record>
void put(std::vector<Record>& records, Record record) {
  const auto place = std::lower_bound(records.begin(), records.end(), record.epoch,
                                      [](const Record& held, std::int64_t epoch) { return held.epoch < epoch; });
  if (place != records.end() && place->epoch == record.epoch) {
    *place = std::move(record);
  } else {
    records.insert(place, std::move(record));
  }
}

// A training that starts from the beginning replaces the one before. If it ends within its first epoch, before it has
// saved anything, the next one may go on from the checkpoint of the one before. Then that one's record counts again.
void choose_record(const Session& session, bool is_new, RunRecord& run, std::optional<RunRecord>& replaced) {
  if (is_new) {
    if (!run.epochs.empty()) replaced = run;
  } else if (replaced && run.epochs.empty() && session.first_epoch > 0) {
    const std::int64_t bad_lines = run.bad_lines;
    run = std::move(*replaced);
    run.bad_lines = bad_lines;
    replaced.reset();
  }
}

void on_start(const Json& event, double time, RunRecord& run, std::optional<RunRecord>& replaced) {
  Session session{.started = time,
                  .last_event = time,
                  .host = text(event, "host"),
                  .world_size = integer(event, "world_size", 1),
                  .first_epoch = integer(event, "first_epoch")};
  const std::int64_t first_step = integer(event, "first_step");
  const bool is_new = session.first_epoch == 0 && first_step == 0;  // it replaces an earlier run in the folder
  auto command = event.value("command", std::vector<std::string>());
  auto classes = event.value("classes", std::vector<std::string>());
  Values configuration = values(event, "configuration");
  Values versions = values(event, "versions");
  std::string name = text(event, "name");
  choose_record(session, is_new, run, replaced);  // a damaged line has thrown by now
  run.name = std::move(name);
  run.command = std::move(command);
  run.classes = std::move(classes);
  run.configuration = std::move(configuration);
  run.versions = std::move(versions);
  for (auto& [name, points] : run.steps) {
    // Without first_step the epoch decides.
    std::erase_if(points, [&](const Point& point) {
      return first_step > 0 ? point.step >= first_step : point.epoch >= session.first_epoch;
    });
  }
  std::erase_if(run.steps, [](const auto& entry) { return entry.second.empty(); });
  drop_from(session.first_epoch, run.epochs);
  drop_from(session.first_epoch, run.evaluations);
  drop_from(session.first_epoch, run.times);
  if (run.confusion_epoch >= session.first_epoch) run.confusion_epoch = -1;
  run.results.clear();
  run.error.clear();
  if (is_new) {
    run.sessions.clear();
    run.notes.clear();
  }
  run.sessions.push_back(std::move(session));
}

void on_step(const Json& event, RunRecord& run) {
  const std::int64_t epoch = integer(event, "epoch");
  const std::int64_t step = integer(event, "step");
  for (const auto& [name, value] : scalars(event, "scalars")) {
    std::vector<Point>& points = run.steps[name];
    // A step that is logged again replaces what was there.
    while (!points.empty() && points.back().step >= step) points.pop_back();
    points.push_back({epoch, step, value});
  }
}

PassRecord pass(const Json& event) {
  return {.epoch = integer(event, "epoch"),
          .seconds = number(event, "seconds"),
          .samples = integer(event, "samples"),
          .scalars = scalars(event, "scalars")};
}

TimesRecord times(const Json& event) {
  TimesRecord record{.epoch = integer(event, "epoch")};
  for (const Json& rank : event.at("ranks")) {
    const std::int64_t number = integer(rank, "rank");
    if (number > std::numeric_limits<int>::max()) continue;
    record.ranks.push_back({static_cast<int>(number), text(rank, "host"), scalars(rank, "seconds")});
  }
  std::stable_sort(record.ranks.begin(), record.ranks.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return record;
}

void on_confusion(const Json& event, RunRecord& run) {
  const std::int64_t epoch = integer(event, "epoch");
  const std::int64_t classes = integer(event, "classes");
  std::vector<ConfusionCell> cells;
  for (const Json& cell : event.at("cells")) {
    const auto [label, predicted, count] = cell.get<std::tuple<std::int64_t, std::int64_t, std::int64_t>>();
    const auto known = [&](std::int64_t number) { return number >= 0 && number < classes; };
    if (known(label) && known(predicted) && count > 0) cells.push_back({label, predicted, count});
  }
  run.confusion_epoch = epoch;
  run.confusion_classes = classes;
  run.confusion = std::move(cells);
}

void apply(const Json& event, RunRecord& run, std::optional<RunRecord>& replaced) {
  const auto& kind = event.at("event").get_ref<const std::string&>();
  const double time = number(event, "time");
  run.state = RunState::kInterrupted;
  if (kind == "start") return on_start(event, time, run, replaced);
  if (run.sessions.empty()) run.sessions.emplace_back(Session{.started = time});
  run.sessions.back().last_event = time;
  if (kind == "step") {
    on_step(event, run);
  } else if (kind == "epoch") {
    put(run.epochs, pass(event));
  } else if (kind == "evaluation") {
    put(run.evaluations, pass(event));
  } else if (kind == "times") {
    put(run.times, times(event));
  } else if (kind == "confusion") {
    on_confusion(event, run);
  } else if (kind == "note") {
    run.notes.push_back({time, text(event, "text")});
  } else if (kind == "end") {
    run.results = scalars(event, "results");
    run.state = RunState::kFinished;
  } else if (kind == "failure") {
    run.error = text(event, "error");
    run.state = RunState::kFailed;
  }
}

// `finished`: a newline ends it. A line without one that is no JSON is not damaged: its writer is at it, or was killed
// in it (Linux cuts a write off between two pages when the process gets SIGKILL).
void read_line(std::string_view line, bool finished, RunRecord& run, std::optional<RunRecord>& replaced,
               std::int64_t& good_lines) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const Json event = parse_json(line);
  if (!finished && event.is_discarded()) return;
  try {
    apply(event, run, replaced);
    ++good_lines;
  } catch (const Json::exception&) {
    ++run.bad_lines;
  }
}

// Calls `on_line(line, finished)` for every line that ends in a newline, and for what follows the last one.
template <typename OnLine>
Status read_lines(const RegularFile& file, const OnLine& on_line) {
  std::vector<std::uint8_t> chunk(std::size_t{1} << 20);
  std::string rest;
  bool too_long = false;
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t got, file.read(chunk));
    std::string_view bytes(reinterpret_cast<const char*>(chunk.data()), got);
    if (got == 0) break;
    for (std::size_t newline = 0; (newline = bytes.find('\n')) != std::string_view::npos;) {
      rest.append(bytes.substr(0, newline));
      on_line(too_long ? std::string_view("too long") : std::string_view(rest), true);
      rest.clear();
      too_long = false;
      bytes.remove_prefix(newline + 1);
    }
    rest.append(bytes);
    if (rest.size() > kLongestLine) {
      too_long = true;
      rest.clear();
    }
  }
  if (!rest.empty() || too_long) on_line(too_long ? std::string_view("too long") : std::string_view(rest), false);
  return {};
}

bool has_writer(int fd) {
  struct flock whole {};
  whole.l_type = F_RDLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_WRLCK;
}

}  // namespace

Result<RunRecord> read_run(const std::filesystem::path& folder_or_file) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(folder_or_file, ignored);
  const std::filesystem::path path = folder ? folder_or_file / kRunLogName : folder_or_file;
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  RunRecord run;
  std::optional<RunRecord> replaced;
  std::int64_t good_lines = 0;
  LOCKSTEP_RETURN_IF_ERROR(read_lines(
      file, [&](std::string_view line, bool finished) { read_line(line, finished, run, replaced, good_lines); }));
  if (good_lines == 0) {
    return Status(ErrorCode::kCorrupt, fmt::format("{}: expected lines of JSON with the events of a run, found none",
                                                   printable(path.native())));
  }
  if (run.state == RunState::kInterrupted && has_writer(file.fd())) run.state = RunState::kRunning;
  if (run.name.empty()) run.name = std::filesystem::absolute(path, ignored).parent_path().filename().native();
  return run;
}

double scalar(const Scalars& scalars, std::string_view name) {
  for (const auto& [key, value] : scalars) {
    if (key == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lockstep::report
