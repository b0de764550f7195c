#include "base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/printable.h"

namespace lockstep {
namespace {

Status not_regular(const std::filesystem::path& path, mode_t mode) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: expected a regular file, found {}", printable(path.native()), kind_of_file(mode))};
}

}  // namespace

std::string_view kind_of_file(unsigned mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    case S_IFCHR:
    case S_IFBLK: return "a device";
    default: return "a file of another kind";
  }
}

Result<RegularFile> RegularFile::open(const std::filesystem::path& path) {
  // O_NOCTTY: a terminal under this name must not become the controlling terminal of this process.
  RegularFile file(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)), path);
  const int error = errno;
  struct stat info {};
  if (!file.fd_.valid()) {
    // open() refuses sockets.
    if (error == ENXIO && ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
      return not_regular(path, info.st_mode);
    }
    return Status::from_errno("cannot open the file", error).with_context(printable(path.native()));
  }
  if (::fstat(file.fd(), &info) != 0) {
    return Status::from_errno("cannot ask for the file's size", errno).with_context(printable(path.native()));
  }
  if (!S_ISREG(info.st_mode)) return not_regular(path, info.st_mode);
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

Result<std::size_t> RegularFile::read(std::span<std::uint8_t> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd(), out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::from_errno("cannot read the file", errno).with_context(printable(path_.native()));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace lockstep
