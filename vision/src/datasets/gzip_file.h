// Reads a file, and unpacks it if it is gzip. Its first two bytes decide that, not its name.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/regular_file.h"

namespace lockstep::data {

class GzipFile {
 public:
  // Throws DataError (kNotFound, kPermission, kIo; kCorrupt if it is not a regular file).
  explicit GzipFile(std::filesystem::path path);

  // Fills `out`, or less at the end of the file, and returns the number of bytes. A read past the end of gzip data
  // verifies its checksum; bytes behind it that are no gzip data are ignored, as by gzip. Throws DataError (kIo,
  // kCorrupt).
  std::size_t read(std::span<std::uint8_t> out);

  // Unpacked bytes read so far.
  std::uint64_t position() const { return position_; }
  // The file cannot unpack to more bytes than this: deflate packs at most about 1032 to 1.
  std::uint64_t most_bytes() const { return file_.size() * (::gzdirect(zlib_.get()) == 1 ? 1 : 1040); }

 private:
  std::filesystem::path path_;
  RegularFile file_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> zlib_;
  std::uint64_t position_ = 0;
};

}  // namespace lockstep::data
