// Reads a file, and unpacks it if it is gzip. Its first two bytes decide that, not its name.
#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/regular_file.h"

namespace lockstep::data {

class GzipFile {
 public:
  // Throws DataError (kNotFound, kPermission, kIo; kCorrupt if it is not a regular file).
  explicit GzipFile(std::filesystem::path path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Fills `out`, or less at the end of the file, and returns the number of bytes. A read past the end of gzip data
  // verifies its checksum. Throws DataError (kIo, kCorrupt).
  std::size_t read(std::span<std::uint8_t> out);

  // Unpacked bytes read so far.
  std::uint64_t position() const { return position_; }
  // The file cannot unpack to more bytes than this: deflate packs at most about 1032 to 1.
  std::uint64_t most_bytes() const { return is_gzip_ ? file_.size() * 1040 : file_.size(); }

 private:
  bool refill();
  std::size_t copy(std::span<std::uint8_t> out);
  std::size_t unpack(std::span<std::uint8_t> out);
  void end_member();
  [[noreturn]] void fail_gzip(const char* what) const;

  std::filesystem::path path_;
  RegularFile file_;
  std::uint64_t file_read_ = 0;  // bytes that were read from the file
  std::uint64_t position_ = 0;
  bool is_gzip_ = false;
  bool ended_ = false;  // all gzip data is unpacked
  z_stream zlib_{};     // plain files use its next_in and avail_in too
  std::array<std::uint8_t, std::size_t{64} * 1024> buffer_;
};

}  // namespace lockstep::data
