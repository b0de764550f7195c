#include "launch/output/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/poll.h"
#include "launch/output/background_writer.h"
#include "launch/output/tail.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

void add(std::string& queue, std::string_view prefix, std::string_view text) {
  queue += prefix;
  queue += text;
}

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

void Console::line(const void* owner, std::string_view prefix, std::string_view text) {
  if (!drop(1)) add_line(owner, prefix, text);
}

void Console::add_line(const void* owner, std::string_view prefix, std::string_view text) {
  const bool others_progress = open_ == Open::kProgress && owner_ != owner;
  if (open_ == Open::kPartial && owner_ == owner) {
    prefix = {};
  } else if (open_ == Open::kPartial) {
    queue_ += '\n';
  } else if (open_ == Open::kProgress) {
    queue_ += kClearLine;
  }
  add(queue_, prefix, text);
  queue_ += '\n';
  if (others_progress) {
    queue_ += progress_;
  } else {
    open_ = Open::kNothing;
  }
}

void Console::partial(const void* owner, std::string_view prefix, std::string_view text) {
  if (drop(0)) return;
  if (open_ == Open::kProgress) return add_line(owner, prefix, text);
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  if (open_ == Open::kPartial && owner_ == owner) prefix = {};
  add(queue_, prefix, text);
  open_ = Open::kPartial;
  owner_ = owner;
}

void Console::progress(const void* owner, std::string_view prefix, std::string_view text) {
  if (drop(0)) return;
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  progress_.assign(prefix);
  progress_ += text;
  // A bar that goes on in the next row could not be replaced by the next one.
  winsize size{};
  if (ioctl(writer_->fd(), TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
    progress_ = fit_to_columns(progress_, size.ws_col - 1);
  }
  queue_ += kClearLine;
  queue_ += progress_;
  open_ = Open::kProgress;
  owner_ = owner;
}

void Console::raw(const void* owner, std::string_view bytes) {
  if (bytes.empty() || drop(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')))) return;
  queue_ += bytes;
  open_ = bytes.ends_with('\n') ? Open::kNothing : Open::kPartial;
  owner_ = owner;
}

void Console::say(std::string_view text) {
  add_line(nullptr, "", text);
  flush();
}

bool Console::drop(std::size_t lines) {
  if (pending() > kHardLimit) {
    dropped_lines_ += lines;
    return true;
  }
  if (dropped_lines_ > 0 && !full()) {
    const std::size_t dropped = std::exchange(dropped_lines_, 0);
    say(fmt::format("lockstep: {} lines were dropped here: the reader was too slow", dropped));
  }
  return false;
}

void Console::flush() {
  writer_->add(queue_);
  queue_.clear();
}

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
