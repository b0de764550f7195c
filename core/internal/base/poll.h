// Waiting for descriptors: poll() with a Deadline, pairs of descriptors, and signals that are read from one.
#pragma once

#include <poll.h>
#include <sys/signalfd.h>

#include <csignal>
#include <initializer_list>
#include <span>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep {

// The time left, as poll() and epoll_wait() take it: milliseconds, -1 for never. Rounded up, or the last millisecond
// would be a busy loop; at most 24 days, so a caller has to look at the deadline again.
int poll_timeout(Deadline deadline);

// Waits until one of `entries` has an event; their `revents` say which. False: the deadline passed first. Signals do
// not end the wait. A deadline that has passed still looks once.
Result<bool> poll_until(std::span<pollfd> entries, Deadline deadline);

// The same for one descriptor. True also when it has failed: the next read or write tells how.
Result<bool> poll_until(int fd, short events, Deadline deadline);

struct FdPair {
  Fd reader;
  Fd writer;
};
// A pipe, or two connected Unix sockets that keep message boundaries, of which both read and write. They are closed on
// exec. `what` begins the error: "cannot make a pipe for ...".
Result<FdPair> make_pipe(std::string_view what);
Result<FdPair> make_socket_pair(std::string_view what);

// For signals that are read from a descriptor instead of ending the process. Those of `numbers` that the process does
// not ignore: one that was ignored at its start (nohup) stays ignored.
sigset_t without_ignored(std::initializer_list<int> numbers);

// The next signal of a signalfd that does not block. Its ssi_signo is 0 if there is none.
signalfd_siginfo next_signal(int fd);

}  // namespace lockstep
