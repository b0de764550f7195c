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

  // Bytes [offset, offset + size) of these, as if they were a file. Throws CheckpointError (kCorrupt) when they end
  // before.
  FileBytes part(std::uint64_t offset, std::uint64_t size) const;

  std::uint64_t size() const { return size_; }

  // Throws CheckpointError: kCorrupt when the file ends before `count` bytes, kIo.
  void read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  void require(std::uint64_t offset, std::uint64_t count) const;

  std::shared_ptr<const RegularFile> file_;  // nullptr: memory_
  std::shared_ptr<const std::string> memory_;
  std::uint64_t begin_ = 0;
  std::uint64_t size_;
};

// Memory that reading may take beyond a multiple of the bytes that are read. The parts of one checkpoint share it: with
// one for each part, a short folder of many parts could ask for any amount.
struct ReadAllowance {
  std::uint64_t pickled = std::uint64_t{256} << 20;  // of the values of pickles
  std::uint64_t inflated = std::uint64_t{64} << 20;  // of zip entries
};

}  // namespace lockstep::checkpoint
