#include "launch/output/consoles.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/poll.h"
#include "launch/output/background_writer.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

bool same_file(int first, int second) {
  struct stat a {};
  struct stat b {};
  return fstat(first, &a) == 0 && fstat(second, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// The largest size that every user may set. If the pipe holds all output, we can exit while its reader (a pager) is
// slow.
void make_room_in_pipe(int fd) {
  struct stat info {};
  if (fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode)) fcntl(fd, F_SETPIPE_SZ, 1 << 20);
}

}  // namespace

Result<std::unique_ptr<Consoles>> Consoles::open() {
  const bool same = same_file(STDOUT_FILENO, STDERR_FILENO);
  std::array<std::unique_ptr<Console>, 2> consoles;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (fd == STDERR_FILENO && same) break;
    LOCKSTEP_ASSIGN_OR_RETURN(auto writer, BackgroundWriter::start(fd));
    consoles[fd - STDOUT_FILENO] = std::make_unique<Console>(std::move(writer), isatty(fd) == 1);
  }
  std::unique_ptr<Consoles> result(new Consoles(std::move(consoles[0]), std::move(consoles[1])));
  log::set_output([&writer = result->err().writer()](std::string_view line) { writer.add(line); });
  return result;
}

Consoles::~Consoles() {
  log::set_output({});
}

void Consoles::flush() {
  out().flush();
  err().flush();
}

void Consoles::add_to(std::vector<pollfd>& polled) {
  polled.push_back({out().writer().event_fd(), POLLIN, 0});
  if (!same()) polled.push_back({err().writer().event_fd(), POLLIN, 0});
}

void Consoles::serve() {
  out().writer().clear_event();
  err().writer().clear_event();
  const int error = out().writer().take_error();
  if (error == 0 || same()) return;
  const Status why = Status::from_errno("cannot write to standard output; lines are dropped, the job goes on", error);
  err().say("lockstep: " + why.message());
}

std::size_t Consoles::pending() {
  return out().writer().pending() + (same() ? 0 : err().writer().pending());
}

void Consoles::finish(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout) {
  flush();
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) make_room_in_pipe(fd);
  if (!wait_for_readers(signals, deadline, stall_timeout)) return;
  serve();  // may add a last message
  static_cast<void>(wait_for_readers(signals, deadline, stall_timeout));
}

bool Consoles::wait_for_readers(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout) {
  std::size_t before = pending();
  Deadline moved = Deadline::after(stall_timeout);
  while (before > 0 && !deadline.expired() && !moved.expired()) {
    std::vector<pollfd> polled{{signals.fd(), POLLIN, 0}};
    add_to(polled);
    static_cast<void>(poll_until(polled, earlier(deadline, moved)));
    if (polled.front().revents != 0) return false;
    serve();
    const std::size_t now = pending();
    if (now < before) moved = Deadline::after(stall_timeout);
    before = now;
  }
  return before == 0;
}

}  // namespace lockstep::launch
