// Memory without a name, for other processes to map.
#pragma once

#include <sys/stat.h>

#include <cstddef>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// Sealed against shrinking: otherwise a process that has it could remove pages that others have mapped, and they would
// die of SIGBUS. It may grow, and holes may be punched. /proc/PID/maps shows `name`.
Result<Fd> make_memory_file(const char* name, std::size_t bytes);

// kCorrupt unless a descriptor from another process is such memory, of at least `bytes`.
Result<struct stat> check_memory_file(int fd, std::size_t bytes);

}  // namespace lockstep::comm
