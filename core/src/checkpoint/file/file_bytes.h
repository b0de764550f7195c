// Pieces of a file (or of memory) that is read in any order. Threads may share it: reading moves no position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/regular_file.h"

namespace lockstep::checkpoint {

class FileBytes {
 public:
  // Throws CheckpointError (kNotFound, kPermission, kCorrupt, kIo) with the path.
  explicit FileBytes(const std::filesystem::path& path);
  // Bytes in memory, as if they were a file.
  explicit FileBytes(std::string bytes);

  std::uint64_t size() const { return size_; }

  // Throws CheckpointError: kCorrupt when the file ends before `count` bytes, kIo.
  void read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  std::shared_ptr<const RegularFile> file_;  // nullptr: memory_
  std::shared_ptr<const std::string> memory_;
  std::uint64_t size_;
};

// Memory that reading may take beyond a multiple of the bytes that are read. The files of one state dict share it: with
// one for each file, a short folder of many files could ask for any amount.
struct ReadAllowance {
  std::uint64_t pickled = std::uint64_t{256} << 20;  // of the values of pickles
  std::uint64_t inflated = std::uint64_t{64} << 20;  // of zip entries
};

}  // namespace lockstep::checkpoint
