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

}  // namespace lockstep::checkpoint
