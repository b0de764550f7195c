// A file that grows by whole records. A record that does not fit leaves nothing behind, and costs one warning for the
// life of the file: what follows is tried again, because there may be room by then.
#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::report {

// The time of a record: seconds since 1970.
inline double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class AppendFile {
 public:
  // Opens or makes a file of lines, with a lock against a second writer (kUnavailable), and removes the beginning of a
  // line at its end. kInvalidArgument when the name belongs to something else than a file of JSON lines.
  static Result<AppendFile> open_lines(const std::filesystem::path& path);
  // What open_lines() would say of a file that is there. Changes nothing.
  static Status check_lines(const std::filesystem::path& path);
  // Makes a file. kIo with EEXIST's text when there is one of this name.
  static Result<AppendFile> create(const std::filesystem::path& path);

  // True when the whole record is in the file.
  bool append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }
  // The first error of append().
  const Status& status() const { return status_; }

 private:
  AppendFile(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Fd fd_;
  std::filesystem::path path_;
  Status status_;
};

}  // namespace lockstep::report
