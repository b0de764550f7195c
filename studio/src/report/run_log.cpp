#include "lockstep/report/run_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/host.h"
#include "base/printable.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "report/append_file.h"
#include "report/json.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::size_t kLongestCommand = 1 << 16;

Json to_json(const Scalars& scalars) {
  Json members = Json::object();
  for (const auto& [name, value] : scalars) members[name] = to_json_number(value);
  return members;
}

Json to_json(const Values& values) {
  Json members = Json::object();
  for (const auto& [name, value] : values) {
    members[name] = std::visit(
        [](const auto& held) -> Json {
          if constexpr (std::is_same_v<std::decay_t<decltype(held)>, double>) return to_json_number(held);
          return held;
        },
        value);
  }
  return members;
}

Json command_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(kLongestCommand, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  Json words = Json::array();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Json pass_event(std::string_view event, std::int64_t epoch, const Pass& pass) {
  return {{"event", event},
          {"epoch", epoch},
          {"seconds", to_json_number(pass.seconds)},
          {"samples", pass.samples},
          {"scalars", to_json(pass.scalars)}};
}

}  // namespace

std::filesystem::path run_folder(const std::filesystem::path& configured) {
  const auto wanted = Environment::of_process().get("LOCKSTEP_RUN_FOLDER");
  return wanted ? std::filesystem::path(*wanted) : configured;
}

class RunLog::Writer {
 public:
  explicit Writer(AppendFile file) : path_(file.path()), file_(std::move(file)) {}

  void write(Json event) {
    if (!origin_.is_this_process()) return;
    event["time"] = wall_time();
    // Names of files may be any bytes, JSON is UTF-8.
    const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const MutexLock lock(mutex_);
    file_.append(line);
  }
  void set_classes(std::size_t classes) {
    const MutexLock lock(mutex_);
    classes_ = classes;
  }
  // Of start(); 0: not known.
  std::size_t classes() const {
    const MutexLock lock(mutex_);
    return classes_;
  }
  Status status() const {
    const MutexLock lock(mutex_);
    return file_.status();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  Origin origin_;
  const std::filesystem::path path_;
  mutable Mutex mutex_;
  AppendFile file_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t classes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

RunLog::RunLog() = default;
RunLog::RunLog(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
RunLog::RunLog(RunLog&&) noexcept = default;
RunLog& RunLog::operator=(RunLog&&) noexcept = default;
RunLog::~RunLog() = default;

Result<RunLog> RunLog::open(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Status::from_errno("cannot make the run's folder", error.value()).with_context(printable(folder.native()));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(AppendFile file, AppendFile::open_lines(folder / kRunLogName));
  return RunLog(std::make_unique<Writer>(std::move(file)));
}

void RunLog::start(const RunStart& start) {
  if (writer_ == nullptr) return;
  writer_->set_classes(start.classes.size());
  Json versions = to_json(start.versions);
  versions["lockstep"] = LOCKSTEP_VERSION;
  writer_->write({{"event", "start"},
                  {"format", kFormat},
                  {"name", start.name},
                  {"host", host_name()},
                  {"pid", ::getpid()},
                  {"world_size", start.world_size},
                  {"first_epoch", start.first_epoch},
                  {"first_step", start.first_step},
                  {"command", command_of_process()},
                  {"configuration", to_json(start.configuration)},
                  {"versions", std::move(versions)},
                  {"classes", start.classes}});
}

void RunLog::step(std::int64_t epoch, std::int64_t step, const Scalars& scalars) {
  if (writer_ == nullptr) return;
  writer_->write({{"event", "step"}, {"epoch", epoch}, {"step", step}, {"scalars", to_json(scalars)}});
}

void RunLog::epoch(std::int64_t epoch, const Pass& training) {
  if (writer_ != nullptr) writer_->write(pass_event("epoch", epoch, training));
}

void RunLog::evaluation(std::int64_t epoch, const Pass& evaluation) {
  if (writer_ != nullptr) writer_->write(pass_event("evaluation", epoch, evaluation));
}

void RunLog::times(std::int64_t epoch, std::span<const RankTimes> ranks) {
  if (writer_ == nullptr) return;
  Json list = Json::array();
  for (const RankTimes& times : ranks) {
    list.push_back({{"rank", times.rank}, {"host", times.host}, {"seconds", to_json(times.seconds)}});
  }
  writer_->write({{"event", "times"}, {"epoch", epoch}, {"ranks", std::move(list)}});
}

void RunLog::confusion(std::int64_t epoch, std::span<const std::int64_t> counts) {
  if (writer_ == nullptr) return;
  std::size_t classes = 0;
  while (classes * classes < counts.size()) ++classes;
  if (classes * classes != counts.size() || (writer_->classes() != 0 && writer_->classes() != classes)) {
    const std::string classes_text =
        writer_->classes() == 0 ? "a square" : fmt::format("{0} x {0}, for {0} classes", writer_->classes());
    log::warning(fmt::format("{}: a confusion matrix of {} counts is left out; expected {}", printable(path().native()),
                             counts.size(), classes_text));
    return;
  }
  Json cells = Json::array();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) cells.push_back({i / classes, i % classes, counts[i]});
  }
  writer_->write({{"event", "confusion"}, {"epoch", epoch}, {"classes", classes}, {"cells", std::move(cells)}});
}

void RunLog::note(std::string_view text) {
  if (writer_ != nullptr) writer_->write({{"event", "note"}, {"text", text}});
}

void RunLog::end(const Scalars& results) {
  if (writer_ != nullptr) writer_->write({{"event", "end"}, {"results", to_json(results)}});
}

void RunLog::fail(std::string_view error) {
  if (writer_ != nullptr) writer_->write({{"event", "failure"}, {"error", error}});
}

Status RunLog::status() const {
  return writer_ == nullptr ? Status() : writer_->status();
}

std::filesystem::path RunLog::path() const {
  return writer_ == nullptr ? std::filesystem::path() : writer_->path();
}

}  // namespace lockstep::report
