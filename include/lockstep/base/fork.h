// What becomes of objects when their process forks.
//
// The child has copies of all objects but only the thread that forked. Locks that other threads held are held for ever,
// threads are not there to be joined, and sockets and shared memory are still the parent's: what the child did with
// them, its parent and the other ranks would feel. So whatever holds any of these is inert in a fork: it remembers the
// process that made it (Origin), answers calls with an error, and is never destroyed (LeakInForks). What must be gone
// at once is dealt with when the child begins (Fd::keep_from_forks, ForkHandler). New objects that a fork makes are its
// own, and work.
//
// Children of posix_spawn, popen and system, and of vfork, become another program without running any of this.
// Descriptors close then (all of ours have O_CLOEXEC).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace lockstep {

namespace fork_detail {
// In a page that the kernel empties in a fork, so that a child of a bare clone() knows itself too.
extern std::atomic<std::atomic<std::uint32_t>*> generation;
std::uint32_t renew_generation();
void remember(const void* object);
}  // namespace fork_detail

// A number of this process that no process has from which it was forked. Costs two loads.
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

// A deleter for smart pointers: in a fork the object stays, untouched.
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

// While it lives, `run(context)` is called in every fork of this process as soon as that is there (not in a fork of the
// fork), and only does what a signal handler may do.
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

// From now on `mutex` is held while the process forks, so that a fork finds what it guards whole and free. For locks
// that are held shortly, and by nobody who forks or waits for such a lock.
void hold_during_forks(std::mutex& mutex);

// The T of this process: made at the first call, and anew in a fork. Never destroyed, as threads may use it until the
// end. For static objects.
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
    Made* parents = nullptr;  // not lost, so that no sanitizer calls it leaked
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
