// A file that appears under its name complete and on the disk, or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep {

// Written as PATH.tmp beside its place, then flushed and renamed. One writer at a time; blocks for the disk. Errors
// (kNotFound, kPermission, kIo) name the temporary file.
class AtomicFile {
 public:
  static constexpr std::string_view kTemporarySuffix = ".tmp";

  // Removes what a killed process has left under the temporary name; a link there is removed and never followed.
  // kInvalidArgument where one of the two names is that of a folder, device or FIFO.
  static Result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes what was not committed.
  ~AtomicFile();

  Status append(std::span<const std::uint8_t> bytes);
  Status overwrite(std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Bytes appended so far.
  std::uint64_t size() const { return size_; }
  // Flushes, renames, flushes the folder. The file is complete then; nothing more may be written. kIo where another
  // writer has replaced the temporary file.
  Status commit();

 private:
  AtomicFile() = default;
  Status write_at(std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Whether the temporary name is that of another file.
  bool taken() const;
  Status failure(std::string_view what, int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  Fd fd_;
  std::uint64_t size_ = 0;
};

}  // namespace lockstep
