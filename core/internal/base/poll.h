// poll() with a Deadline.
#pragma once

#include <poll.h>

#include <span>

#include "lockstep/base/deadline.h"
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

}  // namespace lockstep
