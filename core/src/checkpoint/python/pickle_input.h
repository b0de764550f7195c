// The bytes of a pickle, one after another, from a part of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file/file_bytes.h"

namespace lockstep::checkpoint {

class PickleInput {
 public:
  // Reads bytes [begin, end) of `file`, which must outlive this object.
  PickleInput(const FileBytes& file, std::uint64_t begin, std::uint64_t end) : file_(file), next_(begin), end_(end) {}

  // The offset in the file of the byte that is read next.
  std::uint64_t position() const { return next_ - (buffer_.size() - used_); }
  std::uint64_t left() const { return end_ - position(); }

  // Each throws CheckpointError (kCorrupt) when the bytes end.
  std::uint8_t byte();
  std::string bytes(std::uint64_t count);
  // Up to the end of the line, without it; at most `most` bytes.
  std::string line(std::size_t most);
  // An unsigned little-endian number of `count` bytes, at most 8.
  std::uint64_t number(std::size_t count);

 private:
  void fill();

  const FileBytes& file_;
  std::uint64_t next_;  // what fill() reads
  std::uint64_t end_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::checkpoint
