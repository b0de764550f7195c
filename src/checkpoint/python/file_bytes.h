// Pieces of a file that is read in any order. Threads may share it: reading moves no position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/regular_file.h"

namespace lockstep::checkpoint {

class FileBytes {
 public:
  // Throws CheckpointError (kNotFound, kPermission, kCorrupt, kIo) with the path.
  explicit FileBytes(const std::filesystem::path& path);

  std::uint64_t size() const { return file_.size(); }

  // Throws CheckpointError: kCorrupt when the file ends before `count` bytes, kIo.
  void read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  RegularFile file_;
};

// The CRC-32 of zip files over more bytes; begin with 0.
std::uint32_t crc32_of(std::uint32_t crc, const void* bytes, std::size_t count);

}  // namespace lockstep::checkpoint
