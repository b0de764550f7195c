#include "gzip_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

GzipFile::GzipFile(std::filesystem::path path)
    : path_(std::move(path)),
      file_(value_or_throw(RegularFile::open(path_))),
      zlib_(::gzdopen(::fcntl(file_.fd(), F_DUPFD_CLOEXEC, 0), "rb"), &::gzclose_r) {
  if (zlib_ != nullptr) return;
  throw DataError(ErrorCode::kIo,
                  fmt::format("{}: zlib cannot start: no memory or descriptor is left", printable(path_.native())));
}

std::size_t GzipFile::read(std::span<std::uint8_t> out) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  std::size_t done = 0;
  for (int got = 1; got > 0 && done < out.size();) {
    got = ::gzread(zlib_.get(), out.data() + done, static_cast<unsigned>(std::min(out.size() - done, kMostAtOnce)));
    done += static_cast<std::size_t>(std::max(got, 0));
  }
  position_ += done;
  int error = Z_OK;
  const char* const text = ::gzerror(zlib_.get(), &error);
  if (error == Z_OK || done == out.size()) return done;
  if (error == Z_ERRNO) throw DataError(ErrorCode::kIo, fmt::format("{}: {}", printable(path_.native()), text));
  throw DataError(
      ErrorCode::kCorrupt,
      fmt::format("{}: damaged gzip file: {} (at byte {} of {} of the file, {} bytes unpacked); get the file again",
                  printable(path_.native()), text, ::gzoffset(zlib_.get()), file_.size(), position_));
}

}  // namespace lockstep::data
