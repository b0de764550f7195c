// A file that appears under its name only when it is complete and on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep {

// Written as PATH.tmp in the same folder, then flushed and renamed. A link under PATH is followed. A new file has the
// mode that the umask allows; another keeps its mode. One writer at a time; blocks until the disk has the
// bytes. Errors (kNotFound, kPermission, kIo) name the temporary file.
class AtomicFile {
 public:
  static constexpr std::string_view kTemporarySuffix = ".tmp";

  // Removes what a killed process has left under the temporary name. A link there is removed and never followed.
  // kInvalidArgument when one of the two names belongs to a folder, device or FIFO.
  static Result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the temporary file if it was not committed.
  ~AtomicFile();

  // The disk begins to take the bytes while more are made, so that commit() need not wait for all of them.
  Status append(std::span<const std::uint8_t> bytes);
  Status overwrite(std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Bytes appended so far.
  std::uint64_t size() const { return size_; }
  // The file that is written now. Empty after commit().
  const std::filesystem::path& temporary_path() const { return temporary_; }
  // Flushes, renames, flushes the folder. Nothing more may be written after it. kIo when another writer has replaced
  // the temporary file.
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
