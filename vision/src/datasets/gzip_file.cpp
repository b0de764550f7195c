#include "gzip_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/printable.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // makes zlib accept gzip headers only

}  // namespace

GzipFile::GzipFile(std::filesystem::path path)
    : path_(std::move(path)), file_(value_or_throw(RegularFile::open(path_))) {
  if (refill() && zlib_.avail_in >= 2) is_gzip_ = buffer_[0] == 0x1f && buffer_[1] == 0x8b;
  if (is_gzip_ && ::inflateInit2(&zlib_, kGzipOnly) != Z_OK) {
    throw DataError(ErrorCode::kIo, fmt::format("{}: zlib cannot start: out of memory", printable(path_.native())));
  }
}

GzipFile::~GzipFile() {
  if (is_gzip_) ::inflateEnd(&zlib_);
}

bool GzipFile::refill() {
  const std::size_t got = value_or_throw(file_.read(buffer_));
  file_read_ += got;
  zlib_.next_in = buffer_.data();
  zlib_.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t GzipFile::read(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t got = is_gzip_ ? unpack(out.subspan(done)) : copy(out.subspan(done));
    if (got == 0) break;
    done += got;
    position_ += got;
  }
  return done;
}

std::size_t GzipFile::copy(std::span<std::uint8_t> out) {
  if (zlib_.avail_in == 0 && !refill()) return 0;
  const std::size_t count = std::min<std::size_t>(out.size(), zlib_.avail_in);
  std::memcpy(out.data(), zlib_.next_in, count);
  zlib_.next_in += count;
  zlib_.avail_in -= static_cast<uInt>(count);
  return count;
}

// Returns at least one byte, or 0 at the end of the data.
std::size_t GzipFile::unpack(std::span<std::uint8_t> out) {
  const auto room = static_cast<uInt>(std::min<std::size_t>(out.size(), 1U << 30));
  zlib_.next_out = out.data();
  zlib_.avail_out = room;
  while (!ended_ && zlib_.avail_out == room) {
    if (zlib_.avail_in == 0 && !refill()) fail_gzip("the file ends in the middle of the gzip data");
    const int answer = ::inflate(&zlib_, Z_NO_FLUSH);
    if (answer == Z_STREAM_END) {
      end_member();
    } else if (answer != Z_OK && answer != Z_BUF_ERROR) {
      fail_gzip(zlib_.msg != nullptr ? zlib_.msg : "not gzip data");
    }
  }
  return room - zlib_.avail_out;
}

// A gzip file may hold several members one after another, and nothing else.
void GzipFile::end_member() {
  if (zlib_.avail_in == 0 && !refill()) {
    ended_ = true;
    return;
  }
  if (*zlib_.next_in != 0x1f) fail_gzip("additional bytes after the gzip data");
  if (::inflateReset(&zlib_) != Z_OK) fail_gzip("cannot go on with the next gzip member");
}

void GzipFile::fail_gzip(const char* what) const {
  throw DataError(
      ErrorCode::kCorrupt,
      fmt::format("{}: damaged gzip file: {} (at byte {} of {} of the file, {} bytes unpacked); get the file again",
                  printable(path_.native()), what, file_read_ - zlib_.avail_in, file_.size(), position_));
}

}  // namespace lockstep::data
