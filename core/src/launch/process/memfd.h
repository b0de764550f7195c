// Files without a name, in memory (memfd_create).
#pragma once

#include <string_view>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Writes all bytes to a new memfd. The limit on the size of files (RLIMIT_FSIZE, ulimit -f) holds for memfds too:
// beyond it this is an error. Errors say what the memfd is for.
Status write_memfd(int fd, std::string_view bytes, std::string_view purpose);

// A new memfd with the supervisor's program (supervisor/main.cpp), which this library carries as bytes; executable as
// /proc/self/fd/N. It is closed on exec.
Result<Fd> supervisor_image();

}  // namespace lockstep::launch
