#include "launch/background_writer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "launch/lossy_file.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kChunk = 4096;  // small: a slow terminal shows progress, and a pipe takes it in one piece
// Interrupts a write that blocks. Its default is to be ignored; only the destructor installs a handler.
constexpr int kInterrupt = SIGURG;
// A write that cannot be interrupted (its file server is down) keeps its thread. The destructor waits no longer than
// this.
constexpr auto kJoinFor = std::chrono::seconds(1);

extern "C" void take_no_action(int) {}

// The size of the first whole lines of `text`, up to kChunk bytes.
std::size_t whole_lines(std::string_view text) {
  if (text.size() <= kChunk) return text.size();
  const std::size_t end = text.rfind('\n', kChunk - 1);
  return end == std::string_view::npos ? kChunk : end + 1;
}

}  // namespace

struct BackgroundWriter::State {
  State(int descriptor, Fd event_fd) : fd(descriptor), event(std::move(event_fd)) {}

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
  auto thread_state = std::make_unique<std::shared_ptr<State>>(state);
  // The thread blocks all other signals: those for the launcher, and those that a write can cause (SIGPIPE, SIGXFSZ,
  // SIGTTOU in a background job).
  sigset_t others;
  sigset_t before;
  sigfillset(&others);
  sigdelset(&others, kInterrupt);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  pthread_t thread{};
  const int error = pthread_create(&thread, nullptr, &BackgroundWriter::run, thread_state.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status::from_errno("cannot start a thread for the output", error);
  static_cast<void>(thread_state.release());  // run() deletes it
  return std::unique_ptr<BackgroundWriter>(new BackgroundWriter(std::move(state), thread));
}

BackgroundWriter::~BackgroundWriter() {
  {
    MutexLock lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  struct sigaction interrupt {};
  struct sigaction before {};
  interrupt.sa_handler = take_no_action;
  sigaction(kInterrupt, &interrupt, &before);
  // Repeated, because the signal may arrive just before the write begins.
  const Deadline deadline = Deadline::after(kJoinFor);
  bool joined = false;
  while (!(joined = pthread_tryjoin_np(thread_, nullptr) == 0) && !deadline.expired()) {
    pthread_kill(thread_, kInterrupt);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (!joined) pthread_detach(thread_);
  sigaction(kInterrupt, &before, nullptr);
}

void* BackgroundWriter::run(void* argument) {
  const std::unique_ptr<std::shared_ptr<State>> owned(static_cast<std::shared_ptr<State>*>(argument));
  State& state = **owned;
  for (;;) {
    {
      MutexLock lock(state.mutex);
      while (!state.stop && state.queue.empty()) state.changed.wait(state.mutex);
      if (state.stop) return nullptr;
      const std::size_t size = whole_lines(state.queue);
      state.chunk.assign(state.queue, 0, size);
      state.queue.erase(0, size);
      state.under_way = size;
    }
    const int error = state.file.write(state.fd, state.chunk, &state.stop);
    if (state.stop) return nullptr;
    {
      MutexLock lock(state.mutex);
      state.under_way = 0;
      // EIO: the terminal was hung up.
      state.closed = state.closed || error == EPIPE || (error == EIO && isatty(state.fd) == 1);
      if (state.closed) state.queue.clear();
      if (error != 0 && !state.closed) state.error = error;
    }
    state.notify();
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
