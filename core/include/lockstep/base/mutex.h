// std::mutex with clang's thread-safety annotations, so that `-Wthread-safety` checks who holds what.
// Every mutex names what it guards: `int count_ LOCKSTEP_GUARDED_BY(mutex_);`
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LOCKSTEP_ANNOTATION(x) __attribute__((x))
#else
#define LOCKSTEP_ANNOTATION(x)
#endif
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_ANNOTATION(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_ANNOTATION(scoped_lockable)
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_ANNOTATION(guarded_by(mutex))
#define LOCKSTEP_PT_GUARDED_BY(mutex) LOCKSTEP_ANNOTATION(pt_guarded_by(mutex))
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_ANNOTATION(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_ANNOTATION(locks_excluded(__VA_ARGS__))
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_ANNOTATION(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_TRY_ACQUIRE(...) LOCKSTEP_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_ANNOTATION(release_capability(__VA_ARGS__))
#define LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS LOCKSTEP_ANNOTATION(no_thread_safety_analysis)

namespace lockstep {

class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() LOCKSTEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class LOCKSTEP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // For a mutex that try_lock() has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t) LOCKSTEP_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// May wake without a reason, so callers loop: `while (!ready_) changed_.wait(mutex_);`
class CondVar {
 public:
  void wait(Mutex& mutex) LOCKSTEP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False: `when` passed first.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point when) LOCKSTEP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, when) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep
