#include "report/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/printable.h"
#include "base/regular_file.h"
#include "lockstep/base/log.h"

namespace lockstep::report {
namespace {

constexpr mode_t kMode = 0666;  // less the umask

Status error_of(const std::filesystem::path& path, std::string_view what, int error) {
  return Status::from_errno(what, error).with_context(printable(path.native()));
}

Status not_a_log(const std::filesystem::path& path, std::string_view found) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: expected a log of JSON lines, or no file; found {}", printable(path.native()), found)};
}

// A lock of the open file, not of the process, so that two logs of one process exclude each other too. File systems
// without locks are used without.
Status lock(int fd, const std::filesystem::path& path) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES)) return {};
  return {ErrorCode::kUnavailable,
          fmt::format("{}: another process writes this log; give each run a folder of its own, and let one rank write",
                      printable(path.native()))};
}

// Where the last whole line ends.
Result<off_t> end_of_lines(int fd, off_t size, const std::filesystem::path& path) {
  std::array<char, 1 << 16> bytes{};
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(bytes.size()));
    const ssize_t got = ::pread(fd, bytes.data(), static_cast<std::size_t>(end - begin), begin);
    if (got < 0) return error_of(path, "cannot read the log", errno);
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    if (const auto newline = text.rfind('\n'); newline != std::string_view::npos) {
      return begin + static_cast<off_t>(newline) + 1;
    }
    end = begin;
  }
  return off_t{0};
}

Status remove_unfinished_line(int fd, const std::filesystem::path& path) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) return error_of(path, "cannot ask for the log's size", errno);
  LOCKSTEP_ASSIGN_OR_RETURN(const off_t end, end_of_lines(fd, size, path));
  if (end < size && ::ftruncate(fd, end) != 0) return error_of(path, "cannot remove an unfinished line", errno);
  return {};
}

// The open and locked log. `flags`: more of open()'s.
Result<Fd> open_log(const std::filesystem::path& path, int flags) {
  // O_NONBLOCK: a FIFO under this name must not block. O_NOCTTY: a terminal must not become ours.
  Fd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, kMode));
  const int error = errno;
  if (!fd.valid() && error == EISDIR) return not_a_log(path, "a folder");
  if (!fd.valid()) return error_of(path, "cannot open the log", error);
  fd.keep_from_forks();
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return error_of(path, "cannot ask for the log's size", errno);
  if (!S_ISREG(info.st_mode)) return not_a_log(path, kind_of_file(info.st_mode));
  LOCKSTEP_RETURN_IF_ERROR(lock(fd.get(), path));
  // Somebody's own file is left alone.
  char first = '{';
  if (::pread(fd.get(), &first, 1, 0) < 0) return error_of(path, "cannot read the log", errno);
  if (first != '{') return not_a_log(path, "a file that begins with something else than {");
  return fd;
}

}  // namespace

Result<AppendFile> AppendFile::open_lines(const std::filesystem::path& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, open_log(path, O_CREAT));
  LOCKSTEP_RETURN_IF_ERROR(remove_unfinished_line(fd.get(), path));
  return AppendFile(std::move(fd), path);
}

Status AppendFile::check_lines(const std::filesystem::path& path) {
  return open_log(path, 0).status();
}

Result<AppendFile> AppendFile::create(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, kMode));
  if (!fd.valid()) return error_of(path, "cannot make the file", errno);
  fd.keep_from_forks();
  return AppendFile(std::move(fd), path);
}

bool AppendFile::append(std::string_view record) {
  struct stat before {};
  const bool known = ::fstat(fd_.get(), &before) == 0;
  int error = known ? 0 : errno;
  for (std::size_t done = 0; error == 0 && done < record.size();) {
    const ssize_t written = ::write(fd_.get(), record.data() + done, record.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? ENOSPC : errno;
    }
  }
  if (error == 0) return true;
  // What was written of it is no record.
  if (known) static_cast<void>(::ftruncate(fd_.get(), before.st_size));
  if (status_.ok()) {
    status_ = error_of(path_, "cannot write", error);
    log::warning(status_.message() + "; what does not fit is left out, and the training goes on");
  }
  return false;
}

}  // namespace lockstep::report
