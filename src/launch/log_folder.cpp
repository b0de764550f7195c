#include "launch/log_folder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::launch {
namespace {

Status unwritable(const std::string& path, int error) {
  return Status::from_errno(fmt::format("cannot write logs to '{}' (--log-dir)", path), error);
}

}  // namespace

Result<Fd> open_log_file(const std::string& path) {
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) return unwritable(path, errno);
  return file;
}

Result<std::string> make_log_path(const std::string& log_dir, const std::string& run_id, int attempt, int rank,
                                  const char* stream) {
  const std::string folder = fmt::format("{}/{}/attempt_{}/{}", log_dir, run_id, attempt, rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return unwritable(folder, error.value());
  return fmt::format("{}/{}.log", folder, stream);
}

Result<std::string> make_temporary_log_dir() {
  const char* variable = std::getenv("TMPDIR");
  const std::string parent = variable == nullptr ? "/tmp" : variable;
  std::string path = parent + "/lockstep_logs_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Status::from_errno(
        fmt::format("cannot make a folder for logs in '{}' (TMPDIR; --log-dir names another place)", parent), errno);
  }
  return path;
}

std::string read_end_of_file(const std::string& path, std::size_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto size = static_cast<std::size_t>(file.tellg());
  std::string text(std::min(bytes, size), '\0');
  file.seekg(static_cast<std::streamoff>(size - text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

}  // namespace lockstep::launch
