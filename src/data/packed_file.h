// The bytes of a file, unpacked on the way when it is gzip. Which it is, its first two bytes tell, not its name.
#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/base/regular_file.h"

namespace lockstep::data {

class PackedFile {
 public:
  // Throws DataError (kNotFound, kPermission, kIo; kCorrupt for what is not a regular file).
  explicit PackedFile(std::filesystem::path path);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  // Fills `out`, or as much of it as there are bytes left, and answers how much. Reading past the end of gzip data
  // checks its checksum. Throws DataError (kIo, kCorrupt).
  std::size_t read(std::span<std::uint8_t> out);

  // Unpacked bytes read so far.
  std::uint64_t position() const { return position_; }
  // The file cannot unpack to more bytes than this: deflate never packs better than about 1 to 1032.
  std::uint64_t most_bytes() const { return packed_ ? file_.size() * 1040 : file_.size(); }

 private:
  bool refill();
  std::size_t copy(std::span<std::uint8_t> out);
  std::size_t unpack(std::span<std::uint8_t> out);
  void end_member();
  [[noreturn]] void fail_packed(const char* what) const;

  std::filesystem::path path_;
  RegularFile file_;
  std::uint64_t file_read_ = 0;  // bytes of the file that have been in the buffer
  std::uint64_t position_ = 0;
  bool packed_ = false;
  bool ended_ = false;  // all gzip data is unpacked
  z_stream zlib_{};     // its next_in and avail_in also serve plain files
  std::array<std::uint8_t, 64 * 1024> buffer_;
};

}  // namespace lockstep::data
