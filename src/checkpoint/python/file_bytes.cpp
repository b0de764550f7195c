#include "file_bytes.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <utility>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

RegularFile open_or_throw(const std::filesystem::path& path) {
  auto file = RegularFile::open(path);
  if (!file.ok()) throw CheckpointError(file.status().code(), file.status().message());
  return std::move(file).value();
}

}  // namespace

FileBytes::FileBytes(const std::filesystem::path& path) : file_(open_or_throw(path)) {}

void FileBytes::read(std::uint64_t offset, void* out, std::size_t count) const {
  auto* at = static_cast<char*>(out);
  const std::uint64_t end = file_.size();
  if (offset > end || count > end - offset) {
    throw CheckpointError(
        ErrorCode::kCorrupt,
        fmt::format("damaged: it has {} bytes, {} are expected from byte {} on (truncated?)", end, count, offset));
  }
  while (count > 0) {
    const ssize_t got = ::pread(file_.fd(), at, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError(ErrorCode::kIo, fmt::format("cannot read it: {}", std::strerror(errno)));
    if (got == 0) throw CheckpointError(ErrorCode::kCorrupt, "damaged: the file became shorter while it was read");
    at += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

std::uint32_t crc32_of(std::uint32_t crc, const void* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(bytes), count));
}

}  // namespace lockstep::checkpoint
