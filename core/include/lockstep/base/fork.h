// What happens to objects when their process forks.
//
// The child has copies of all objects but only the thread that forked. Locks that other threads held stay locked
// forever, and those threads cannot be joined. Sockets and shared memory are still the parent's: what the child does
// to them reaches the parent and the other ranks. Therefore an object that holds any of these is inert in a fork: it
// remembers the process that made it (Origin), answers calls with an error, and is never destroyed (LeakInForks).
// Descriptors and memory that the child must not keep are released when it begins (Fd::keep_from_forks, ForkHandler).
// Objects that the fork itself makes work as usual.
//
// Children of posix_spawn, popen, system and vfork become another program and run none of this. Their copies of our
// descriptors close, because all have O_CLOEXEC.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace lockstep {

namespace fork_detail {
// The number lies in a page that the kernel clears in a fork, so that even a child of a bare clone() notices that it is
// a fork.
extern std::atomic<std::atomic<std::uint32_t>*> generation;
std::uint32_t renew_generation();
void remember(const void* object);
}  // namespace fork_detail

// A number of this process, different from the numbers of all processes that it was forked from. Costs two loads.
inline std::uint32_t process_generation() {
  const auto* const page = fork_detail::generation.load(std::memory_order_acquire);
  const std::uint32_t known = page == nullptr ? 0 : page->load(std::memory_order_relaxed);
  return known != 0 ? known : fork_detail::renew_generation();
}

// Remembers the process in which it was made.
class Origin {
 public:
  // False in forks of that process.
  bool is_this_process() const { return generation_ == process_generation(); }

 private:
  std::uint32_t generation_ = process_generation();
};

// A deleter for smart pointers: in a fork it does not touch the object.
class LeakInForks {
 public:
  template <typename T>
  void operator()(T* object) const {
    if (origin_.is_this_process()) {
      delete object;
    } else {
      fork_detail::remember(object);
    }
  }

 private:
  Origin origin_;
};

// While it lives, every fork of this process (but no fork of a fork) calls `run(context)` when it begins. `run` may
// only do what a signal handler may do.
class ForkHandler {
 public:
  using Run = void (*)(void* context);
  ForkHandler(Run run, void* context);
  ~ForkHandler();
  ForkHandler(const ForkHandler&) = delete;
  ForkHandler& operator=(const ForkHandler&) = delete;

 private:
  friend void run_fork_handlers();

  const Run run_;
  void* const context_;
  ForkHandler* before_ = nullptr;
  ForkHandler* after_ = nullptr;
  bool listed_ = false;
};

// From now on the process holds `mutex` while it forks, so that in the child the mutex is free and its data consistent.
// Only for locks that are held briefly, by code that neither forks nor waits for another such lock.
void hold_during_forks(std::mutex& mutex);

// One T for each process: made at the first call, and again in a fork. Never destroyed, because threads may use it
// until the process ends. For static objects.
template <typename T>
class OfProcess {
 public:
  constexpr OfProcess() = default;
  OfProcess(const OfProcess&) = delete;
  OfProcess& operator=(const OfProcess&) = delete;

  T& get() {
    Made* made = made_.load(std::memory_order_acquire);
    if (made == nullptr || !made->origin.is_this_process()) made = renew(made);
    return made->value;
  }

 private:
  struct Made {
    Origin origin;
    T value;
    Made* parents = nullptr;  // kept, so that no sanitizer reports a leak
  };

  Made* renew(Made* old) {
    auto* const fresh = new Made();
    fresh->parents = old;
    if (made_.compare_exchange_strong(old, fresh, std::memory_order_acq_rel)) return fresh;
    delete fresh;  // another thread was first
    return old;
  }

  std::atomic<Made*> made_{nullptr};
};

}  // namespace lockstep
