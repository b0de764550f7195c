// A file that appears under its name complete and on the disk, or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::checkpoint {

inline constexpr std::string_view kTemporarySuffix = ".tmp";

class AtomicFile {
 public:
  // Starts `path`.tmp in the same folder; one that a killed process has left there is overwritten.
  explicit AtomicFile(std::filesystem::path path);
  // Removes what was not committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(const void* bytes, std::size_t count);
  void overwrite(std::uint64_t offset, std::string_view bytes);
  // Flushes, renames, flushes the folder.
  void commit();

 private:
  void write_at(std::uint64_t offset, const char* bytes, std::size_t count);
  [[noreturn]] void fail(std::string_view what, int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Fd fd_;
  std::uint64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace lockstep::checkpoint
