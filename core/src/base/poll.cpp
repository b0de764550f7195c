#include "base/poll.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

Result<FdPair> make_pipe(std::string_view what) {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Status::from_errno(what, errno);
  return FdPair{Fd(ends[0]), Fd(ends[1])};
}

Result<FdPair> make_socket_pair(std::string_view what) {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return Status::from_errno(what, errno);
  return FdPair{Fd(ends[0]), Fd(ends[1])};
}

sigset_t without_ignored(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

signalfd_siginfo next_signal(int fd) {
  signalfd_siginfo info{};
  if (::read(fd, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
  return info;
}

}  // namespace lockstep
