// Whether a program can be loaded ahead of its start: what its file says.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

namespace lockstep::launch {

// Which file a path means, and its contents as far as time and size tell.
struct ProgramFile {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec changed{};

  bool operator==(const ProgramFile& other) const;
};

// nullopt: there is none.
std::optional<ProgramFile> program_file(const std::string& path);

// Whether the file is an executable with the hook of this version (hook.h). False for scripts, for programs of another
// kind of machine, and for files that cannot be read.
bool has_standby_hook(const std::string& path);

}  // namespace lockstep::launch
