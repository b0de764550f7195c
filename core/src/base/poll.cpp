#include "base/poll.h"

#include <algorithm>
#include <cerrno>
#include <limits>

namespace lockstep {

int poll_timeout(Deadline deadline) {
  if (deadline.is_never()) return -1;
  return static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms().count(), std::numeric_limits<int>::max()));
}

Result<bool> poll_until(std::span<pollfd> entries, Deadline deadline) {
  for (;;) {
    const int timeout = poll_timeout(deadline);
    const int ready = poll(entries.data(), entries.size(), timeout);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return Status::from_errno("poll", errno);
    // Only after a poll that returned 0: a poll that a signal ended has not looked at the descriptors.
    if (ready == 0 && (timeout == 0 || deadline.expired())) return false;
  }
}

Result<bool> poll_until(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  return poll_until(std::span(&entry, 1), deadline);
}

}  // namespace lockstep
