#include "lockstep/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/printable.h"
#include "base/regular_file.h"

namespace lockstep {
namespace {

constexpr mode_t kMode = 0666;  // the process's umask takes off what it does not give to others
constexpr std::size_t kFlushedAtOnce = 8 << 20;

ErrorCode code_of(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
    case EROFS: return ErrorCode::kPermission;
    case ENOENT:
    case ENOTDIR: return ErrorCode::kNotFound;
    default: return ErrorCode::kIo;
  }
}

Status in_the_way(const std::filesystem::path& path, mode_t mode) {
  return {ErrorCode::kInvalidArgument, fmt::format("{}: expected a place for a regular file, found {}",
                                                   printable(path.native()), kind_of_file(mode))};
}

Status error_of(const std::filesystem::path& path, std::string_view what, int error_number) {
  return {code_of(error_number),
          fmt::format("{}: {}: {}", printable(path.native()), what, std::strerror(error_number))};
}

// Removes the file of a writer that was killed, or a link, which would lead the bytes to another file.
Status clear(const std::filesystem::path& temporary) {
  struct stat info {};
  if (::lstat(temporary.c_str(), &info) != 0) return {};  // open() tells why
  if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)) return in_the_way(temporary, info.st_mode);
  if (::unlink(temporary.c_str()) == 0 || errno == ENOENT) return {};
  return error_of(temporary, "cannot remove the file that is there", errno);
}

// The file that a link leads to, which may not be there yet: a rename would replace the link.
std::filesystem::path target_of(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(path, error); ++links) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // an absolute target replaces all
  }
  return path;
}

// Lets the disk take the bytes while more are made, so that fsync() finds few. Does not wait, and leaves most errors to
// fsync(). Some file systems do not offer it.
bool start_flushing(int fd, std::uint64_t begin, std::uint64_t end) {
  const int result =
      ::sync_file_range(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin), SYNC_FILE_RANGE_WRITE);
  return result == 0 || errno == EINVAL || errno == ENOSYS || errno == EPERM;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  const std::filesystem::path target = target_of(path);
  struct stat info {};
  const bool is_there = ::stat(target.c_str(), &info) == 0;
  // A rename would replace a device, and the reader of a FIFO would never get the bytes.
  if (is_there && !S_ISREG(info.st_mode)) return in_the_way(target, info.st_mode);
  AtomicFile file;
  file.path_ = target;
  std::filesystem::path temporary = target;
  temporary += kTemporarySuffix;
  LOCKSTEP_RETURN_IF_ERROR(clear(temporary));
  // O_EXCL: what came there meanwhile, links included, is not opened.
  file.fd_.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
  if (!file.fd_.valid()) return error_of(temporary, "cannot create the file", errno);
  file.temporary_ = std::move(temporary);
  // Who may read a file stays as it is when the file is replaced.
  if (is_there && ::fchmod(file.fd_.get(), info.st_mode & 0777) != 0) return file.failure("cannot set its mode", errno);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)),
      size_(other.size_) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty() && !taken()) ::unlink(temporary_.c_str());
}

Status AtomicFile::append(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kFlushedAtOnce));
    LOCKSTEP_RETURN_IF_ERROR(write_at(size_, piece));
    const std::uint64_t begin = size_ / kFlushedAtOnce * kFlushedAtOnce;
    size_ += piece.size();
    bytes = bytes.subspan(piece.size());
    const std::uint64_t end = size_ / kFlushedAtOnce * kFlushedAtOnce;
    if (end > begin && !start_flushing(fd_.get(), begin, end)) return failure("cannot write to the disk", errno);
  }
  return {};
}

Status AtomicFile::overwrite(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  return write_at(offset, bytes);
}

Status AtomicFile::write_at(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(fmt::format("cannot write {} bytes at byte {}", bytes.size(), offset), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) return failure("cannot flush to the disk", errno);
  if (taken()) {
    return {ErrorCode::kIo, fmt::format("{}: another writer has replaced the file; expected one writer at a time",
                                        printable(temporary_.native()))};
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("cannot rename into place", errno);
  temporary_.clear();
  // Without this a power failure may lose the new name. The old file would still be there.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const Fd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid() || ::fsync(folder_fd.get()) != 0) return failure("cannot flush its folder to the disk", errno);
  return {};
}

Status AtomicFile::failure(std::string_view what, int error_number) const {
  return error_of(temporary_.empty() ? path_ : temporary_, what, error_number);
}

bool AtomicFile::taken() const {
  struct stat ours {};
  struct stat there {};
  if (fd_.get() < 0 || ::fstat(fd_.get(), &ours) != 0 || ::lstat(temporary_.c_str(), &there) != 0) return false;
  return ours.st_dev != there.st_dev || ours.st_ino != there.st_ino;
}

}  // namespace lockstep
