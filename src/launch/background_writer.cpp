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

constexpr std::size_t kChunk = 4096;  // few: a slow terminal is seen to move, and what a pipe takes is not torn
// Interrupts a write that blocks. By default it is ignored, and so it is but for the moment in which it is used.
constexpr int kInterrupt = SIGURG;
// A write that cannot be interrupted (a file server that is away) keeps its thread, but nobody who waits for it.
constexpr auto kJoinFor = std::chrono::seconds(1);

extern "C" void take_no_action(int) {}

// The first lines of `text`, some kChunk of them.
std::size_t whole_lines(std::string_view text) {
  if (text.size() <= kChunk) return text.size();
  const std::size_t end = text.rfind('\n', kChunk - 1);
  return end == std::string_view::npos ? kChunk : end + 1;
}

}  // namespace

struct BackgroundWriter::State {
  State(int descriptor, Fd event) : fd(descriptor), news(std::move(event)) {}

  void tell() {
    changed.notify_all();
    const std::uint64_t one = 1;
    while (::write(news.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  const int fd;
  const Fd news;
  mutable Mutex mutex;
  CondVar changed;
  std::string queue LOCKSTEP_GUARDED_BY(mutex);
  std::size_t under_way LOCKSTEP_GUARDED_BY(mutex) = 0;  // bytes of `chunk`
  bool closed LOCKSTEP_GUARDED_BY(mutex) = false;
  int refusal LOCKSTEP_GUARDED_BY(mutex) = 0;
  int told_refusal LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::atomic<bool> stop{false};
  // The thread's own.
  LossyFile file;
  std::string chunk;
};

Result<std::unique_ptr<BackgroundWriter>> BackgroundWriter::start(int fd) {
  Fd news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!news.valid()) return Status::from_errno("cannot make an event descriptor for the output", errno);
  auto state = std::make_shared<State>(fd, std::move(news));
  auto thread_state = std::make_unique<std::shared_ptr<State>>(state);
  // The thread takes no other signals: neither those meant for the launcher, nor those that output brings (SIGPIPE,
  // SIGXFSZ, SIGTTOU of a background job).
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
  // Again and again: it may come just before the write.
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
      if (error != 0 && !state.closed) state.refusal = error;
    }
    state.tell();
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

int BackgroundWriter::take_refusal() {
  MutexLock lock(state_->mutex);
  const int refusal = std::exchange(state_->refusal, 0);
  if (refusal == 0 || refusal == state_->told_refusal) return 0;
  state_->told_refusal = refusal;
  return refusal;
}

int BackgroundWriter::news_fd() const {
  return state_->news.get();
}

void BackgroundWriter::clear_news() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(state_->news.get(), &count, sizeof count));
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
