// A regular file that a user named, open for reading. Anything else under that name is an error. Opening never blocks,
// as open() of a FIFO would until somebody writes to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep {

class RegularFile {
 public:
  // kNotFound, kPermission; kCorrupt for a folder, FIFO, socket or device; kIo. Messages begin with the path.
  static Result<RegularFile> open(const std::filesystem::path& path);

  // Bytes, at the time of opening.
  std::uint64_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  // Fills `out` with the next bytes; returns how many there were.
  Result<std::size_t> read(std::span<std::uint8_t> out) const;

 private:
  RegularFile(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Fd fd_;
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
};

// Names the kind of file that a mode of stat() says: "a folder", "a FIFO" and so on.
std::string_view kind_of_file(unsigned mode);

}  // namespace lockstep
