// A pseudo-terminal (pty) for a worker's stdout. C and C++ programs write to a terminal whenever a line ends, but to a
// pipe or a file only when 4 KiB are full. If such a program aborts, the full lines that it has not written are lost.
#pragma once

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

struct Pty {
  Fd reader;  // of what is written to `writer`; EIO at the end, when no process has `writer` open
  Fd writer;  // a terminal of 80 columns; EIO when `reader` is closed
};

// Bytes pass unchanged. The terminal sends no signals, and does not become a process's controlling terminal unless a
// session leader opens it by its name to read and write. Both descriptors are closed on exec. An error: the system
// gives no pseudo-terminals to this process, as in some containers, or all of them are in use
// (/proc/sys/kernel/pty/max).
Result<Pty> open_pty();

}  // namespace lockstep::launch
