#include "launch/output/worker_stream.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

namespace lockstep::launch {
namespace {

constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC;
constexpr winsize kUsualSize{24, 80, 0, 0};

Status failure(const char* call) {
  return Status::from_errno(std::string("no pseudo-terminal can be made (") + call + ")", errno);
}

}  // namespace

Result<Pty> open_pty() {
  Pty pty;
  pty.reader.reset(posix_openpt(kFlags));
  if (!pty.reader.valid()) return failure("posix_openpt");
  if (unlockpt(pty.reader.get()) != 0) return failure("unlockpt");
  // Not by its name: /dev/pts may be that of another mount namespace.
  pty.writer.reset(ioctl(pty.reader.get(), TIOCGPTPEER, kFlags));
  if (!pty.writer.valid()) return failure("TIOCGPTPEER");
  termios raw{};
  if (tcgetattr(pty.writer.get(), &raw) != 0) return failure("tcgetattr");
  cfmakeraw(&raw);
  if (tcsetattr(pty.writer.get(), TCSANOW, &raw) != 0) return failure("tcsetattr");
  if (ioctl(pty.writer.get(), TIOCSWINSZ, &kUsualSize) != 0) return failure("TIOCSWINSZ");
  return pty;
}

WorkerStream::WorkerStream(Fd reader, std::unique_ptr<LogFile> log, Settings settings)
    : reader_(std::move(reader)), log_(std::move(log)), settings_(std::move(settings)) {
  fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
}

bool WorkerStream::wants_read() {
  if (!reader_.valid() || (log_ != nullptr && log_->full())) return false;
  const Console* console = settings_.console;
  if (console == nullptr) return true;
  if (console->closed() && ends_with_console()) {
    if (!settings_.terminal) {
      reader_.reset();
      return false;
    }
    if (!std::exchange(console_left_, true)) drop_what_is_written();
  }
  return !console->full();
}

void WorkerStream::drop_what_is_written() {
  // A pseudo-terminal holds less. If the worker writes on meanwhile, there is no end.
  constexpr std::size_t kMostHeld = std::size_t{256} << 10;
  std::array<char, 64 * 1024> buffer;
  std::size_t dropped = 0;
  for (ssize_t size = 0; dropped < kMostHeld && (size = read(reader_.get(), buffer.data(), buffer.size())) > 0;) {
    dropped += static_cast<std::size_t>(size);
  }
}

bool WorkerStream::read_some() {
  std::array<char, 64 * 1024> buffer;
  const ssize_t size = read(reader_.get(), buffer.data(), buffer.size());
  if (size > 0) {
    take(std::string_view(buffer.data(), static_cast<std::size_t>(size)));
    return true;
  }
  // A pipe ends with 0, a pseudo-terminal with EIO.
  if (size == 0 || (errno != EAGAIN && errno != EINTR)) finish();
  return false;
}

void WorkerStream::take(std::string_view bytes) {
  if (settings_.tail != nullptr) settings_.tail->append(bytes);
  if (log_ != nullptr) log_->append(bytes);
  if (settings_.console == nullptr) return;
  if (settings_.console->closed()) {
    written_in_vain_ = written_in_vain_ || console_left_;
    if (told_at_ && Clock::now() >= *told_at_ + kTimeToEnd) reader_.reset();
    return;
  }
  if (settings_.style == Style::kRaw) {
    settings_.console->raw(this, bytes);
  } else {
    take_lines(bytes);
  }
}

void WorkerStream::take_lines(std::string_view bytes) {
  Console& console = *settings_.console;
  for (std::size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    partial_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    console.line(this, settings_.prefix, visible_part(partial_));
    partial_.clear();
    has_progress_ = false;
  }
  if (bytes.empty()) return;
  if (partial_.empty()) partial_since_ = Clock::now();
  partial_ += bytes;
  if (bytes.find('\r') != std::string_view::npos) {
    has_progress_ = true;
    // Only the visible text is kept. A '\r' at the end is kept too, as its '\n' may still come.
    const bool returned = partial_.back() == '\r';
    partial_ = std::string(visible_part(partial_)) + (returned ? "\r" : "");
  }
  if (has_progress_ && settings_.style == Style::kProgress) {
    console.progress(this, settings_.prefix, visible_part(partial_));
  } else if (partial_.size() >= kPartialBytes) {
    const std::string rest = partial_.substr(whole_letters(partial_).size());
    partial_.resize(partial_.size() - rest.size());
    console.partial(this, settings_.prefix, visible_part(partial_));
    partial_ = rest;
    has_progress_ = false;
  }
}

std::optional<WorkerStream::Clock::time_point> WorkerStream::partial_due() const {
  // The rest of a letter comes with the next bytes.
  if (has_progress_ || whole_letters(partial_).empty()) return std::nullopt;
  return partial_since_ + kPartialDelay;
}

void WorkerStream::show_partial_if_due(Clock::time_point now) {
  const std::optional<Clock::time_point> due = partial_due();
  if (!due || now < *due) return;
  const std::string_view whole = whole_letters(partial_);
  settings_.console->partial(this, settings_.prefix, whole);
  partial_.erase(0, whole.size());
  partial_since_ = now;
}

void WorkerStream::finish() {
  reader_.reset();
  log_.reset();
  if (partial_.empty()) return;
  settings_.console->line(this, settings_.prefix, visible_part(partial_));
  partial_.clear();
}

}  // namespace lockstep::launch
