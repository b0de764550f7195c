// For programs of ours, at the very start of main(), and for functions that start programs.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace lockstep {

// Opens /dev/null under each of the numbers 0 to 2 that is closed. A socket or file that is opened later would
// otherwise get the number: text for stdout would go into it, and started programs would inherit it. System calls only,
// because the supervisor has no C++ library.
inline void fill_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is used, which is this one.
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

}  // namespace lockstep
