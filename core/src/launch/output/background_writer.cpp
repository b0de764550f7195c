#include "launch/output/background_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"

namespace lockstep::launch {
namespace {

// Its default is to be ignored; only end() installs a handler.
constexpr int kInterrupt = SIGURG;
constexpr auto kJoinFor = std::chrono::seconds(1);

extern "C" void take_no_action(int) {}

extern "C" void* run_body(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

// Afterwards `bytes` holds the rest that was not written.
int write_all(int fd, std::string_view& bytes, const std::atomic<bool>* stop) {
  while (!bytes.empty()) {
    if (stop != nullptr && *stop) return EINTR;
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      pollfd waited{fd, POLLOUT, 0};  // another program that shares the file has made it non-blocking
      poll(&waited, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

constexpr std::size_t kWrittenChunk = 4096;  // small: a slow terminal shows progress, and a pipe takes it in one piece
// The size of the first whole lines of `text`, up to kWrittenChunk bytes.
std::size_t whole_lines(std::string_view text) {
  if (text.size() <= kWrittenChunk) return text.size();
  const std::size_t end = text.rfind('\n', kWrittenChunk - 1);
  return end == std::string_view::npos ? kWrittenChunk : end + 1;
}

}  // namespace

Result<OutputThread> OutputThread::start(std::function<void()> body) {
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t others;
  sigset_t before;
  sigfillset(&others);
  sigdelset(&others, kInterrupt);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  pthread_t thread{};
  const int error = pthread_create(&thread, nullptr, &run_body, argument.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status::from_errno("cannot start a thread for the output", error);
  static_cast<void>(argument.release());  // NOLINT(bugprone-unused-return-value): run_body deletes it
  return OutputThread(thread);
}

void OutputThread::end() const {
  struct sigaction interrupt {};
  struct sigaction before {};
  interrupt.sa_handler = take_no_action;
  sigaction(kInterrupt, &interrupt, &before);
  // Repeated, because the signal may arrive just before the system call begins.
  const Deadline deadline = Deadline::after(kJoinFor);
  bool joined = false;
  while (!(joined = pthread_tryjoin_np(thread_, nullptr) == 0) && !deadline.expired()) {
    pthread_kill(thread_, kInterrupt);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (!joined) pthread_detach(thread_);
  sigaction(kInterrupt, &before, nullptr);
}

int LossyFile::write(int fd, std::string_view bytes, const std::atomic<bool>* stop) {
  int error = 0;
  if (reason_ != 0) {
    const std::string note =
        fmt::format("\nlockstep: {} lines are missing here: {}\n", missing_lines_, std::strerror(reason_));
    std::string_view rest = note;
    error = write_all(fd, rest, stop);
  }
  if (error == 0) {
    reason_ = 0;
    missing_lines_ = 0;
    error = write_all(fd, bytes, stop);
  }
  if (error == 0) return 0;
  reason_ = error;
  missing_lines_ += static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  return error;
}

struct BackgroundWriter::State {
  State(int descriptor, Fd event_fd) : fd(descriptor), event(std::move(event_fd)) {}

  void run();  // in the thread
  void notify() {
    changed.notify_all();
    const std::uint64_t one = 1;
    while (::write(event.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  const int fd;
  const Fd event;
  mutable Mutex mutex;
  CondVar changed;
  std::string queue LOCKSTEP_GUARDED_BY(mutex);
  std::size_t under_way LOCKSTEP_GUARDED_BY(mutex) = 0;  // bytes of `chunk`
  bool closed LOCKSTEP_GUARDED_BY(mutex) = false;
  int error LOCKSTEP_GUARDED_BY(mutex) = 0;
  int reported_error LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::atomic<bool> stop{false};
  // Used by the thread only.
  LossyFile file;
  std::string chunk;
};

Result<std::unique_ptr<BackgroundWriter>> BackgroundWriter::start(int fd) {
  Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return Status::from_errno("cannot make an event descriptor for the output", errno);
  auto state = std::make_shared<State>(fd, std::move(event));
  LOCKSTEP_ASSIGN_OR_RETURN(const OutputThread thread, OutputThread::start([state] { state->run(); }));
  return std::unique_ptr<BackgroundWriter>(new BackgroundWriter(std::move(state), thread));
}

BackgroundWriter::~BackgroundWriter() {
  {
    MutexLock lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  thread_.end();
}

void BackgroundWriter::State::run() {
  for (;;) {
    {
      MutexLock lock(mutex);
      while (!stop && queue.empty()) changed.wait(mutex);
      if (stop) return;
      const std::size_t size = whole_lines(queue);
      chunk.assign(queue, 0, size);
      queue.erase(0, size);
      under_way = size;
    }
    const int failed = file.write(fd, chunk, &stop);
    if (stop) return;
    {
      MutexLock lock(mutex);
      under_way = 0;
      // EIO: the terminal was hung up.
      closed = closed || failed == EPIPE || (failed == EIO && isatty(fd) == 1);
      if (closed) queue.clear();
      if (failed != 0 && !closed) error = failed;
    }
    notify();
  }
}

int BackgroundWriter::fd() const {
  return state_->fd;
}

void BackgroundWriter::add(std::string_view bytes) {
  if (bytes.empty()) return;
  MutexLock lock(state_->mutex);
  if (state_->closed) return;
  state_->queue += bytes;
  state_->changed.notify_all();
}

std::size_t BackgroundWriter::pending() const {
  MutexLock lock(state_->mutex);
  return state_->queue.size() + state_->under_way;
}

bool BackgroundWriter::closed() const {
  MutexLock lock(state_->mutex);
  return state_->closed;
}

int BackgroundWriter::take_error() {
  MutexLock lock(state_->mutex);
  const int error = std::exchange(state_->error, 0);
  if (error == 0 || error == state_->reported_error) return 0;
  state_->reported_error = error;
  return error;
}

int BackgroundWriter::event_fd() const {
  return state_->event.get();
}

void BackgroundWriter::clear_event() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(state_->event.get(), &count, sizeof count));
}

bool BackgroundWriter::wait_until_written(Deadline deadline) {
  MutexLock lock(state_->mutex);
  while (!state_->queue.empty() || state_->under_way > 0) {
    if (deadline.expired()) return false;
    state_->changed.wait_until(state_->mutex, deadline.when());
  }
  return true;
}

}  // namespace lockstep::launch
