#include "lockstep/base/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <set>
#include <vector>

#include "base/no_forks.h"
#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

constexpr std::size_t kPage = 4096;

// Held while a process forks, so that the child's lists are consistent. Plain and constant-initialised, because they
// are used before and after all other static objects.
std::mutex lists_mutex;
ForkHandler* first_handler = nullptr;
std::set<int>* guarded_descriptors = nullptr;
std::vector<std::mutex*>* held_mutexes = nullptr;

// For NoForks: each thread holds one of them, so threads seldom wait for each other. A fork holds all.
using NoForksMutexes = std::array<std::mutex, 16>;
NoForksMutexes brief_calls;
NoForksMutexes long_calls;
std::atomic<unsigned> next_no_forks{0};

struct NoForksOfThread {
  const unsigned first = next_no_forks.fetch_add(1, std::memory_order_relaxed);
  std::mutex* held = nullptr;
  int depth = 0;

  // A free one if there is one, because some calls take long.
  void lock(NoForksMutexes& mutexes) {
    const auto mutex = [&](unsigned i) { return &mutexes[(first + i) % mutexes.size()]; };
    for (unsigned i = 0; i < mutexes.size(); ++i) {
      held = mutex(i);
      if (held->try_lock()) return;
    }
    held = mutex(0);
    held->lock();
  }
};

NoForksOfThread& no_forks_of_thread() {
  thread_local NoForksOfThread of_thread;
  return of_thread;
}

std::atomic<std::uint32_t> last_generation{0};

struct Remembered {
  const void* object;
  Remembered* before;
};
std::atomic<Remembered*> remembered{nullptr};

// The numbers stay in use, because the objects that own them will close them; the files behind them are released.
void replace_descriptors() {
  if (guarded_descriptors == nullptr || guarded_descriptors->empty()) return;
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) {  // no number is free: use the first one's
    close(*guarded_descriptors->begin());
    nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  }
  for (const int fd : *guarded_descriptors) {
    if (nothing < 0) {
      close(fd);
    } else if (nothing != fd) {
      dup3(nothing, fd, O_CLOEXEC);
    }
  }
  if (nothing >= 0 && !guarded_descriptors->contains(nothing)) close(nothing);
  guarded_descriptors->clear();
}

void before_fork() {
  // The long calls first: while the fork waits for one, it holds up no brief call.
  for (std::mutex& mutex : long_calls) mutex.lock();
  for (std::mutex& mutex : brief_calls) mutex.lock();
  lists_mutex.lock();
  if (held_mutexes == nullptr) return;
  for (std::mutex* const mutex : *held_mutexes) mutex->lock();
}

// In both processes.
void after_fork() {
  if (held_mutexes != nullptr) {
    for (std::mutex* const mutex : *held_mutexes) mutex->unlock();
  }
  lists_mutex.unlock();
  for (std::mutex& mutex : brief_calls) mutex.unlock();
  for (std::mutex& mutex : long_calls) mutex.unlock();
}

}  // namespace

void run_fork_handlers() {
  while (ForkHandler* const handler = first_handler) {
    handler->run_(handler->context_);
    first_handler = handler->after_;
    handler->listed_ = false;
  }
}

namespace {

void after_fork_in_child() {
  // Where it can (MADV_WIPEONFORK), the kernel has already done this.
  fork_detail::generation.load(std::memory_order_relaxed)->store(0, std::memory_order_relaxed);
  run_fork_handlers();
  replace_descriptors();
  after_fork();
}

// Called once by a process; its forks inherit the result.
void prepare_for_forks() {
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static std::atomic<std::uint32_t> without_page{0};
  auto* generation = &without_page;
  if (page != MAP_FAILED) {
#ifdef MADV_WIPEONFORK
    madvise(page, kPage, MADV_WIPEONFORK);
#endif
    generation = new (page) std::atomic<std::uint32_t>(0);
  }
  fork_detail::generation.store(generation, std::memory_order_release);
  pthread_atfork(&before_fork, &after_fork, &after_fork_in_child);
}

}  // namespace

namespace fork_detail {

std::atomic<std::atomic<std::uint32_t>*> generation{nullptr};

std::uint32_t renew_generation() {
  static std::once_flag prepared;
  if (generation.load(std::memory_order_acquire) == nullptr) std::call_once(prepared, prepare_for_forks);
  auto* const page = generation.load(std::memory_order_acquire);
  std::uint32_t now = 0;
  const std::uint32_t next = last_generation.fetch_add(1, std::memory_order_relaxed) + 1;
  return page->compare_exchange_strong(now, next, std::memory_order_relaxed) ? next : now;
}

void remember(const void* object) {
  auto* const entry = new Remembered{object, remembered.load(std::memory_order_relaxed)};
  while (!remembered.compare_exchange_weak(entry->before, entry)) {
  }
}

}  // namespace fork_detail

ForkHandler::ForkHandler(Run run, void* context) : run_(run), context_(context) {
  (void)process_generation();
  const std::lock_guard lock(lists_mutex);
  after_ = first_handler;
  if (after_ != nullptr) after_->before_ = this;
  first_handler = this;
  listed_ = true;
}

ForkHandler::~ForkHandler() {
  const std::lock_guard lock(lists_mutex);
  if (!listed_) return;
  (before_ != nullptr ? before_->after_ : first_handler) = after_;
  if (after_ != nullptr) after_->before_ = before_;
}

NoForks::NoForks(Calls calls) {
  (void)process_generation();
  NoForksOfThread& of_thread = no_forks_of_thread();
  if (of_thread.depth++ == 0) of_thread.lock(calls == Calls::kLong ? long_calls : brief_calls);
}

NoForks::~NoForks() {
  NoForksOfThread& of_thread = no_forks_of_thread();
  if (--of_thread.depth == 0) of_thread.held->unlock();
}

void hold_during_forks(std::mutex& mutex) {
  (void)process_generation();
  const std::lock_guard lock(lists_mutex);
  if (held_mutexes == nullptr) held_mutexes = new std::vector<std::mutex*>;
  held_mutexes->push_back(&mutex);
}

void Fd::keep_from_forks() {
  if (fd_ < 0 || guarded_) return;
  (void)process_generation();
  const std::lock_guard lock(lists_mutex);
  if (guarded_descriptors == nullptr) guarded_descriptors = new std::set<int>;
  guarded_descriptors->insert(fd_);
  guarded_ = true;
}

void Fd::unguard() {
  const std::lock_guard lock(lists_mutex);
  guarded_descriptors->erase(fd_);
  guarded_ = false;
}

// Under the lock no fork comes in between, and no other thread gets the number while it is in the list.
void Fd::close_guarded() {
  const std::lock_guard lock(lists_mutex);
  guarded_descriptors->erase(fd_);
  guarded_ = false;
  ::close(fd_);
}

}  // namespace lockstep
