#include "launch/nodes/job_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/poll.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fd.h"
#include "store/tcp/user_key.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kLongestKey = 4096;

// Byte by byte: what follows is for rank 0. A terminal or a pipe may give nothing for long.
Result<std::string> first_line_of_stdin(int interrupt_fd) {
  std::string line;
  while (true) {
    std::array<pollfd, 2> polled{{{STDIN_FILENO, POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, Deadline::never()).status());
    if (polled[1].revents != 0) return Status(ErrorCode::kAborted, "interrupted while reading the job's key");
    char byte = 0;
    if (read(STDIN_FILENO, &byte, 1) != 1 || byte == '\n' || line.size() > kLongestKey) return line;
    line += byte;
  }
}

std::string in_file(const std::string& path) {
  return fmt::format("'{}' (--job-key-file)", path);
}

Status too_long(const std::string& from) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("the job's key in {} has more than {} characters; `openssl rand -hex 32` makes one", from,
                      kLongestKey)};
}

Result<std::string> text_of_key_file(const std::string& path, int interrupt_fd) {
  if (path == "-") return first_line_of_stdin(interrupt_fd);
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0)
    return Status::from_errno(fmt::format("cannot read the job's key from {}", in_file(path)), errno);
  if (S_ISREG(info.st_mode) && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Status(ErrorCode::kPermission,
                  fmt::format("others may read the job's key in '{}' (--job-key-file, mode {:03o}): chmod 600 it, and "
                              "choose another key if somebody may have read it",
                              path, info.st_mode & 0777));
  }
  std::string text(kLongestKey + 3, '\0');  // with the end of its line, and one character more
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t count = read(file.get(), text.data() + bytes, text.size() - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status::from_errno(fmt::format("cannot read the job's key from {}", in_file(path)), errno);
    if (count == 0) break;
    bytes += static_cast<std::size_t>(count);
  }
  if (bytes == text.size()) return too_long(in_file(path));
  text.resize(bytes);
  return text;
}

// Workers get the key in their environment, which has no zero bytes and takes 128 KiB for a variable.
Result<std::string> checked(std::string key, const std::string& from) {
  if (key.size() > kLongestKey) return too_long(from);
  if (key.find('\0') == std::string::npos) return key;
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("the job's key in {} has a zero byte, with which workers cannot get it in their "
                            "environment: write it as text, as `openssl rand -hex 32` does",
                            from));
}

}  // namespace

Result<std::string> find_job_key(const std::string& path, int interrupt_fd) {
  const Environment environment = Environment::of_process();
  if (path.empty()) {
    if (auto key = environment.get("LOCKSTEP_JOB_KEY")) return checked(*std::move(key), "LOCKSTEP_JOB_KEY");
    return comm::user_key(environment);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::string key, text_of_key_file(path, interrupt_fd));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (!key.empty()) return checked(std::move(key), in_file(path));
  return Status(ErrorCode::kInvalidArgument, fmt::format("{} is empty, expected a secret", in_file(path)));
}

}  // namespace lockstep::launch
