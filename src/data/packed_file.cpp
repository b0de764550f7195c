#include "packed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's code for a gzip header, no other

DataError system_error(const std::filesystem::path& path, const char* what, int error_number) {
  return DataError(error_number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                   fmt::format("{}: {}: {}", path.native(), what, std::strerror(error_number)));
}

}  // namespace

PackedFile::PackedFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_.valid()) throw system_error(path_, "cannot open", errno);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error(path_, "cannot ask for the size", errno);
  if (!S_ISREG(info.st_mode)) {
    throw DataError(ErrorCode::kIo, fmt::format("{}: expected a regular file", path_.native()));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
  if (refill() && zlib_.avail_in >= 2) packed_ = buffer_[0] == 0x1f && buffer_[1] == 0x8b;
  if (packed_ && ::inflateInit2(&zlib_, kGzipOnly) != Z_OK) {
    throw DataError(ErrorCode::kIo, fmt::format("{}: zlib cannot start: out of memory", path_.native()));
  }
}

PackedFile::~PackedFile() {
  if (packed_) ::inflateEnd(&zlib_);
}

bool PackedFile::refill() {
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), buffer_.data(), buffer_.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw system_error(path_, "cannot read", errno);
  file_read_ += static_cast<std::uint64_t>(got);
  zlib_.next_in = buffer_.data();
  zlib_.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t PackedFile::read(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t got = packed_ ? unpack(out.subspan(done)) : copy(out.subspan(done));
    if (got == 0) break;
    done += got;
    position_ += got;
  }
  return done;
}

std::size_t PackedFile::copy(std::span<std::uint8_t> out) {
  if (zlib_.avail_in == 0 && !refill()) return 0;
  const std::size_t count = std::min<std::size_t>(out.size(), zlib_.avail_in);
  std::memcpy(out.data(), zlib_.next_in, count);
  zlib_.next_in += count;
  zlib_.avail_in -= static_cast<uInt>(count);
  return count;
}

// At least one byte, or 0 at the end of the data.
std::size_t PackedFile::unpack(std::span<std::uint8_t> out) {
  const auto room = static_cast<uInt>(std::min<std::size_t>(out.size(), 1U << 30));
  zlib_.next_out = out.data();
  zlib_.avail_out = room;
  while (!ended_ && zlib_.avail_out == room) {
    if (zlib_.avail_in == 0 && !refill()) fail_packed("the file ends in the middle of the gzip data");
    const int answer = ::inflate(&zlib_, Z_NO_FLUSH);
    if (answer == Z_STREAM_END) {
      end_member();
    } else if (answer != Z_OK && answer != Z_BUF_ERROR) {
      fail_packed(zlib_.msg != nullptr ? zlib_.msg : "not gzip data");
    }
  }
  return room - zlib_.avail_out;
}

// gzip files may hold several members one after another, and nothing else.
void PackedFile::end_member() {
  if (zlib_.avail_in == 0 && !refill()) {
    ended_ = true;
    return;
  }
  if (*zlib_.next_in != 0x1f) fail_packed("additional bytes after the gzip data");
  if (::inflateReset(&zlib_) != Z_OK) fail_packed("cannot go on with the next gzip member");
}

void PackedFile::fail_packed(const char* what) const {
  throw DataError(
      ErrorCode::kCorrupt,
      fmt::format("{}: damaged gzip file: {} (at byte {} of {} of the file, {} bytes unpacked); get the file again",
                  path_.native(), what, file_read_ - zlib_.avail_in, size_, position_));
}

}  // namespace lockstep::data
