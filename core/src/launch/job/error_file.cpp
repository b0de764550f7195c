#include "launch/job/error_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/random.h"
#include "base/regular_file.h"
#include "launch/output/log_folder.h"
#include "launch/output/tail.h"
#include "launch/process/signals.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
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

// Empty: no place for it can be written.
std::string make_folder() {
  // In memory first: a disk that hangs would delay the launcher.
  for (const std::string& parent : {std::string("/dev/shm"), temporary_folder()}) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(parent, error);  // workers may change their folder
    if (error || !has_room(parent)) continue;
    std::string path = (whole / "lockstep_errors_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) continue;
    if (chmod(path.c_str(), kFolderMode) == 0) return path;
    rmdir(path.c_str());
  }
  return {};
}

// Programs that remove old files (systemd-tmpfiles) leave a folder alone while somebody has locked it.
Fd lock_folder(const std::string& path) {
  Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) static_cast<void>(flock(folder.get(), LOCK_SH | LOCK_NB));
  return folder;
}

}  // namespace

ErrorFiles::~ErrorFiles() {
  std::error_code ignored;  // files that nobody reads any more
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::string ErrorFiles::make_file() {
  if (folder_.empty()) {
    folder_ = make_folder();
    if (!folder_.empty()) lock_ = lock_folder(folder_);
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

}  // namespace lockstep::launch
