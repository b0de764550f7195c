#include "atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr mode_t kMode = 0644;

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

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += kTemporarySuffix;
  fd_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!fd_.valid()) fail("cannot create the file", errno);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::append(const void* bytes, std::size_t count) {
  write_at(size_, static_cast<const char*>(bytes), count);
  size_ += count;
}

void AtomicFile::overwrite(std::uint64_t offset, std::string_view bytes) {
  write_at(offset, bytes.data(), bytes.size());
}

void AtomicFile::write_at(std::uint64_t offset, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::pwrite(fd_.get(), bytes, count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(fmt::format("cannot write {} bytes at byte {}", count, offset), errno);
    bytes += written;
    offset += static_cast<std::uint64_t>(written);
    count -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) fail("cannot flush to the disk", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename into place", errno);
  committed_ = true;
  // Without this the new name may be lost in a power failure, though not the old file.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const Fd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid() || ::fsync(folder_fd.get()) != 0) fail("cannot flush its folder to the disk", errno);
}

void AtomicFile::fail(std::string_view what, int error_number) const {
  throw CheckpointError(code_of(error_number), fmt::format("{}: {}: {}; checkpoints saved earlier are untouched",
                                                           temporary_.native(), what, std::strerror(error_number)));
}

}  // namespace lockstep::checkpoint
