// Bytes as a file in memory, for parsers that take a path. Nothing of the file is left behind.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

class MemoryPath {
 public:
  explicit MemoryPath(std::string_view bytes = {}) : fd_(::memfd_create("lockstep-fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryPath() { ::close(fd_); }
  MemoryPath(const MemoryPath&) = delete;
  MemoryPath& operator=(const MemoryPath&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// What `write(path)` writes, for seeds: writers replace a file in one step, so they need a folder.
template <typename Write>
std::string bytes_written(const Write& write) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-fuzz-XXXXXX").native();
  require(::mkdtemp(folder.data()) != nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "file";
  write(path);
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove_all(folder);
  return bytes;
}

}  // namespace lockstep::fuzz
