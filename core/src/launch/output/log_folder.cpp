#include "launch/output/log_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/regular_file.h"
#include "lockstep/base/environment.h"

namespace lockstep::launch {
namespace {

Status unwritable(const std::string& path, int error) {
  return Status::from_errno(fmt::format("cannot write logs to '{}' (--log-dir)", path), error);
}

}  // namespace

Result<Fd> open_log_file(const std::string& path) {
  // O_NONBLOCK: not to wait for the other end of a FIFO.
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  const int error = errno;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(ErrorCode::kIo,
                  fmt::format("cannot write logs to '{}' (--log-dir): expected a regular file, found {}", path,
                              kind_of_file(info.st_mode)));
  }
  if (!file.valid()) return unwritable(path, error);
  if (info.st_size > 0) {
    std::array<char, 32> now{};
    const std::time_t seconds = std::time(nullptr);
    std::tm local{};
    if (localtime_r(&seconds, &local) != nullptr) std::strftime(now.data(), now.size(), "%F %T", &local);
    const std::string mark = fmt::format("\nlockstep: another run begins here, {}\n", now.data());
    // A full disk is told of when the worker's lines do not fit either.
    static_cast<void>(!write(file.get(), mark.data(), mark.size()));
  }
  return file;
}

std::string log_folder_of(const std::string& log_dir, const std::string& run_id) {
  std::string name = run_id;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool plain = std::isalnum(static_cast<unsigned char>(name[i])) != 0 || name[i] == '-' || name[i] == '_';
    if (!plain && (name[i] != '.' || i == 0)) name[i] = '_';
  }
  return fmt::format("{}/{}", log_dir, name);
}

Result<std::string> make_log_path(const std::string& log_dir, const std::string& run_id, int attempt, int rank,
                                  const char* stream) {
  const std::string folder = fmt::format("{}/attempt_{}/{}", log_folder_of(log_dir, run_id), attempt, rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return unwritable(folder, error.value());
  return fmt::format("{}/{}.log", folder, stream);
}

std::string temporary_folder() {
  return Environment::of_process().get("TMPDIR").value_or("/tmp");
}

Result<std::string> make_temporary_log_dir(const std::string& parent) {
  std::string path = parent + "/lockstep_logs_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Status::from_errno(
        fmt::format("cannot make a folder for logs in '{}' (TMPDIR; --log-dir names another place)", parent), errno);
  }
  return path;
}

std::string read_end_of_file(const std::string& path, std::size_t bytes) {
  const auto file = RegularFile::open(path);
  if (!file.ok()) return {};
  const std::uint64_t size = file.value().size();
  std::string text(std::min<std::uint64_t>(bytes, size), '\0');
  const ssize_t got = pread(file.value().fd(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace lockstep::launch
