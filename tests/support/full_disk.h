// Disks with little room, for tests of writes that do not fit.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstddef>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::test {

// Limits the size of this process's files; a write beyond it fails with EFBIG. Processes that it starts inherit the
// limit.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    lift();
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

  void lift() const { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// A file system in memory that is mounted nowhere. This process, and those that it starts, reach it through this
// process's descriptor; it ends with that descriptor. Needs root.
class SmallDisk {
 public:
  // Throws std::runtime_error with the reason when the system does not allow it.
  explicit SmallDisk(std::size_t bytes);

  std::string path(const std::string& name) const;
  void resize(std::size_t bytes) const;
  // Fills all the room that is left.
  void fill() const;

 private:
  Fd mount_;
};

}  // namespace lockstep::test
