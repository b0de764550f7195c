// A file that appears under its name only when it is complete and on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep {

// The bytes go to PATH.tmp in the same folder; commit() flushes this temporary file and renames it to PATH. If PATH is
// a symbolic link, the target of the link is replaced. A new file gets the mode that the umask allows; an existing file
// keeps its mode. One writer at a time; commit() blocks until the disk has the bytes. Errors (kNotFound, kPermission,
// kIo) name the temporary file.
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

  // Appends at the end. The system starts to write the bytes to the disk at once, so that commit() has little to wait
  // for.
  Status append(std::span<const std::uint8_t> bytes);
  Status overwrite(std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Bytes appended so far.
  std::uint64_t size() const { return size_; }
  // The path of the temporary file. Empty after commit().
  const std::filesystem::path& temporary_path() const { return temporary_; }
  // Flushes the file, renames it, and flushes the folder. Nothing may be written after commit(). kIo when another
  // writer has replaced the temporary file.
  Status commit();

 private:
  AtomicFile() = default;
  Status write_at(std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Whether the temporary name belongs to another writer's file now.
  bool taken() const;
  Status failure(std::string_view what, int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  Fd fd_;
  std::uint64_t size_ = 0;
};

}  // namespace lockstep
