#include "launch/job/failure_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host.h"
#include "base/printable.h"
#include "base/random.h"
#include "base/regular_file.h"
#include "launch/output/log_files.h"
#include "launch/output/tail.h"
#include "launch/process/process_tree.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

// The lines behind the first one further to the right, so that they do not look like the launcher's own.
std::string indented(std::string_view text) {
  std::string result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    result += (begin == 0 ? "" : "\n    ") + printable(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr int kMostTries = 3;
constexpr mode_t kFolderMode = 0711;  // other users cannot list it
constexpr mode_t kFileMode = 0666;    // who knows its name may write, which is random: a worker may be another user's
constexpr std::size_t kLeastRoom = std::size_t{1} << 20;
constexpr std::size_t kMostText = std::size_t{8} << 10;

std::string text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  // The end of a long call stack says where the exception came from.
  return std::string(end_of_text(found->get_ref<const std::string&>(), kMostText));
}

// A container's /dev/shm may have room for nothing.
bool has_room(const std::string& parent) {
  struct statvfs info {};
  return statvfs(parent.c_str(), &info) == 0 && info.f_bavail * info.f_frsize >= kLeastRoom;
}

constexpr std::string_view kFolderName = "lockstep_errors_";

// Folders of this user's launchers that were killed together with their supervisors. A launcher that lives has locked
// its own.
void remove_abandoned(const std::filesystem::path& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (!path.filename().native().starts_with(kFolderName)) continue;
    const Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (!folder.valid() || fstat(folder.get(), &info) != 0 || info.st_uid != geteuid()) continue;
    std::error_code ignored;
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(path, ignored);
  }
}

// Programs that remove old files (systemd-tmpfiles) leave a folder alone while somebody has locked it, and so does
// remove_abandoned(). Not valid: another launcher has taken the folder for an abandoned one before.
Fd lock_folder(const std::string& path) {
  Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  // On a file system without locks nobody removes the folder.
  const bool taken = folder.valid() && flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const bool gone = fstat(folder.get(), &info) != 0 || info.st_nlink == 0;
  if (taken || gone) folder.reset();
  return folder;
}

struct LockedFolder {
  std::string path = {};  // empty: no place for it can be written
  Fd lock = {};
};

LockedFolder make_folder() {
  // In memory first: a disk that hangs would delay the launcher.
  for (const std::string& parent : {std::string("/dev/shm"), temporary_folder()}) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(parent, error);  // workers may change their folder
    if (error || !has_room(parent)) continue;
    remove_abandoned(whole);
    for (int tries = 0; tries < kMostTries; ++tries) {
      std::string path = (whole / fmt::format("{}XXXXXX", kFolderName)).string();
      if (mkdtemp(path.data()) == nullptr) break;
      Fd lock = lock_folder(path);
      if (lock.valid() && fchmod(lock.get(), kFolderMode) == 0) return {std::move(path), std::move(lock)};
      rmdir(path.c_str());
    }
  }
  return {};
}

// The number in the line "oom_kill 3".
std::optional<std::uint64_t> kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  for (std::uint64_t count = 0; file >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return std::nullopt;
}

// An earlier job of this name may have left it.
Result<bool> remove_report(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (!error) return true;
  return Status::from_errno(fmt::format("cannot remove the error file '{}' of an earlier job", path), error.value());
}

Result<bool> write_report(const std::string& path, const std::string& report) {
  std::error_code ignored;  // writing says what is wrong
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream file(path, std::ios::trunc);
  file << report << std::flush;
  if (file.good()) return true;
  return Status::from_errno(fmt::format("cannot write the error file '{}'", path), errno);
}

}  // namespace

std::string format_failure(const Failure& failure, std::string_view what) {
  std::string text = fmt::format("lockstep: {} {} {}: {}\n", failure.is_newcomer ? "the newcomer for rank" : "rank",
                                 failure.rank, what, describe_exit(failure.exit));
  const std::string node = failure.node_rank < 0 ? "" : fmt::format("node {}, ", failure.node_rank);
  text += fmt::format("  {}host {}, pid {}, local rank {}, ran {:.2f} s", node, failure.host, failure.exit.pid,
                      failure.local_rank, std::chrono::duration<double>(failure.exit.run_time).count());
  if (failure.max_restarts > 0) text += fmt::format(", after {} of {} restarts", failure.attempt, failure.max_restarts);
  text += fmt::format("\n  command: {}", failure.command);
  if (!failure.error.empty()) text += fmt::format("\n  its error: {}", indented(failure.error));
  if (!failure.stderr_seen) return text;
  if (failure.stderr_tail.empty()) return text + "\n  it wrote nothing to stderr";
  text += "\n  the end of its stderr:";
  for (const std::string& line : failure.stderr_tail) text += "\n    " + line;
  return text;
}

int exit_code_of(const Exit& exit) {
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

int exit_code_of(const Status& program) {
  return program.code() == ErrorCode::kNotFound ? 127 : 126;
}

ErrorFiles::~ErrorFiles() {
  std::error_code ignored;  // files that nobody reads any more
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::string ErrorFiles::make_file() {
  if (folder_.empty()) {
    LockedFolder made = make_folder();
    folder_ = std::move(made.path);
    lock_ = std::move(made.lock);
  }
  const Result<std::string> name = random_digits(16);
  if (folder_.empty() || !name.ok()) return {};
  std::string path = fmt::format("{}/{}.json", folder_, name.value());
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
  const bool made = file.valid() && fchmod(file.get(), kFileMode) == 0;  // whatever the umask
  return made ? path : std::string();
}

void read_error_file(const std::string& path, Failure& failure) {
  // By its name: a launcher within the worker removes the file and makes it anew.
  const auto opened = RegularFile::open(path);
  if (!opened.ok()) return;
  std::string bytes(kMostBytes, '\0');
  const auto size = opened.value().read(std::span(reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()));
  if (!size.ok()) return;
  bytes.resize(size.value());
  const json file = json::parse(bytes, nullptr, false);
  if (!file.is_object()) return;
  failure.error = text_in(file, "message");
  const auto message = file.find("message");
  if (message == file.end() || !message->is_object()) return;
  failure.error = text_in(*message, "message");
  const auto more = message->find("extraInfo");
  if (more != message->end() && more->is_object()) failure.call_stack = text_in(*more, "py_callstack");
}

std::string error_report(const Failure* failure, const std::string& reason, int exit_code) {
  json more{{"timestamp", std::to_string(std::time(nullptr))}};
  std::string text = reason;
  if (failure != nullptr) {
    text = failure->error.empty() ? fmt::format("rank {}: {}", failure->rank, describe_exit(failure->exit))
                                  : failure->error;
    more.update({{"rank", failure->rank},
                 {"local_rank", failure->local_rank},
                 {"node", std::max(0, failure->node_rank)},
                 {"host", failure->host},
                 {"pid", failure->exit.pid},
                 {"exit_code", failure->exit.code},
                 {"signal", failure->exit.signal},
                 {"stderr", fmt::format("{}", fmt::join(failure->stderr_tail, "\n"))}});
    if (!failure->call_stack.empty()) more["py_callstack"] = failure->call_stack;
  }
  const json report{{"message", {{"message", text}, {"errorCode", exit_code}, {"extraInfo", more}}}};
  return report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

MemoryKills memory_kills(const std::string& memberships, const std::string& mount, const std::string& vmstat) {
  for (const ControlGroup& group : control_groups("memory", memberships, mount)) {
    const auto count = kills_in(group.folder + (group.version_1 ? "/memory.oom_control" : "/memory.events"));
    if (count) return {"control group " + group.folder, *count};
  }
  const auto count = kills_in(vmstat);
  return count ? MemoryKills{"machine", *count} : MemoryKills();
}

std::string lack_of_memory(const MemoryKills& before, const MemoryKills& now) {
  if (now.place != before.place || now.count <= before.count) return {};
  return fmt::format(
      "the kernel has ended {} process{} of this {} for lack of memory since the workers started: this one was "
      "probably "
      "among them; give the job more memory, or its workers less to hold",
      now.count - before.count, now.count - before.count == 1 ? "" : "es", now.place);
}

void write_error_report(const JobOptions& options, const std::string& run_id, const JobEnd& end, LogFiles* logs,
                        SignalWatch& signals) {
  const bool well = !end.failure && end.reason.empty();
  std::vector<std::string> paths;
  const auto reply = Environment::of_process().get("TORCHELASTIC_ERROR_FILE");
  if (reply && !well) paths.push_back(*reply);
  if (!options.log_dir.empty()) paths.push_back(log_folder_of(options.log_dir, run_id) + "/error.json");
  if (paths.empty()) return;
  const std::string report = well ? "" : error_report(end.failure ? &*end.failure : nullptr, end.reason, end.code);
  for (const std::string& path : paths) {
    const std::function<Result<bool>()> write = [path, report] {
      return report.empty() ? remove_report(path) : write_report(path, report);
    };
    const auto written = logs != nullptr ? logs->call(write, signals.fd(), Deadline::after(logs->patience())) : write();
    if (!written.ok()) log::warning(written.status().message());
  }
}

}  // namespace lockstep::launch
