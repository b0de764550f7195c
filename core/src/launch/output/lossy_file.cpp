#include "launch/output/lossy_file.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::launch {
namespace {

// Afterwards `bytes` holds the rest that was not written.
int write_all(int fd, std::string_view& bytes, const std::atomic<bool>* stop) {
  while (!bytes.empty()) {
    if (stop != nullptr && *stop) return EINTR;
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      pollfd waited{fd, POLLOUT, 0};  // another program that shares the file has made it non-blocking
      poll(&waited, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

int LossyFile::write(int fd, std::string_view bytes, const std::atomic<bool>* stop) {
  int error = 0;
  if (reason_ != 0) {
    const std::string note =
        fmt::format("\nlockstep: {} lines are missing here: {}\n", missing_lines_, std::strerror(reason_));
    std::string_view rest = note;
    error = write_all(fd, rest, stop);
  }
  if (error == 0) {
    reason_ = 0;
    missing_lines_ = 0;
    error = write_all(fd, bytes, stop);
  }
  if (error == 0) return 0;
  reason_ = error;
  missing_lines_ += static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  return error;
}

}  // namespace lockstep::launch
