// Memory without a name, to be handed to other processes.
#pragma once

#include <sys/stat.h>

#include <cstddef>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// Sealed against shrinking, so that nobody who holds it can take pages away that others have mapped (they would die of
// SIGBUS). It may grow, and holes may be punched. `name` shows in /proc/PID/maps.
Result<Fd> make_memory_file(const char* name, std::size_t bytes);

// Whether a descriptor from another process is such memory, of at least `bytes`: kCorrupt when not.
Result<struct stat> check_memory_file(int fd, std::size_t bytes);

}  // namespace lockstep::comm
