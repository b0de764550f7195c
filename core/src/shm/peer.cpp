#include "shm/peer.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/poll.h"
#include "lockstep/base/deadline.h"

namespace lockstep::comm {
namespace {

constexpr auto kLastMoments = std::chrono::milliseconds(200);  // of a process that is ending

bool has_ended(int process, Deadline deadline) {
  pollfd entry{process, POLLIN, 0};
  const auto ready = poll_until(std::span(&entry, 1), deadline);
  return ready.ok() && (entry.revents & POLLIN) != 0;
}

}  // namespace

bool Peer::is_gone() const {
  return (process->valid() && has_ended(process->get(), Deadline::after(std::chrono::nanoseconds(0)))) ||
         !arena->owner_runs();
}

// A dying process closes its descriptors before its pidfd shows the end, so wait a moment.
const char* Peer::how_gone() const {
  const bool ended = process->valid() && has_ended(process->get(), Deadline::after(kLastMoments));
  return ended ? "died" : "ended or replaced its program (exec)";
}

Result<Fd> open_own_process() {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid())
    return Status::from_errno(
        "pidfd_open (needs Linux 5.3 or newer, and in a container a seccomp profile that allows it)", errno);
  return process;
}

bool is_process(int fd) {
  constexpr auto kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older C libraries lack
  siginfo_t ignored{};
  return waitid(kPidfd, fd, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != EBADF;
}

}  // namespace lockstep::comm
