// Waiting: how a rank waits for the others, how it is woken, and how the group breaks.
//
// A wait first spins, because the others are usually only microseconds behind. Then it yields the core, then it sleeps
// on a futex that the awaited rank wakes. With more ranks than cores it yields at once, because the awaited rank needs
// the core. Every wait sees an abort at once and the death of a process within kCheckEvery. Before it yields or sleeps,
// it progresses the process's other groups (group_registry.h).
#pragma once

#include <sched.h>

#include <chrono>
#include <functional>

#include "engine/core/group.h"
#include "engine/core/group_registry.h"
#include "engine/core/timing.h"
#include "group_memory.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::comm {

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most cores. `isb` empties the core's pipeline, which takes about as long as `pause` on x86.
  asm volatile("isb");
#endif
}

// Not in builds with ThreadSanitizer, which does not support fences.
inline void fence([[maybe_unused]] std::memory_order order) {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(order);
#endif
}

class Waiting {
 public:
  // `group` is the group that waits.
  Waiting(const GroupMemory& memory, const Group& group);

  // Whether there are more ranks than cores.
  bool crowded() const { return crowded_; }
  // How often relax() is called before a wait yields, sleeps or gives up. patience() is for waits in the middle of a
  // stream or a pipelined send, when the awaited ranks are known to be inside their calls: it is larger, unless the
  // group is crowded.
  int spins() const { return spins_; }
  int patience() const { return crowded_ ? spins_ : kPatience * spins_; }
  void relax() const { crowded_ ? static_cast<void>(sched_yield()) : cpu_relax(); }

  // Wakes ranks that wait for any rank and, with `posted`, those that wait for this rank's post. Call it after the
  // store that they wait for, which must be sequentially consistent.
  void notify(bool posted) const {
    if (memory_.header().sleepers.load(std::memory_order_seq_cst) != 0) wake(posted);
  }

  // The next step of a wait in which nothing has moved since `idle_since`: progresses the other groups, whose moves
  // count too, then yields or sleeps. `awaited` returns the rank whose post is missing, or -1; a call of `done` may
  // change it. `done` is called once more after this rank has announced that it sleeps.
  void pause(std::chrono::steady_clock::time_point& idle_since, const std::function<int()>& awaited,
             const std::function<bool()>& done) const;

  // Breaks the group. The reason of the first caller stays.
  void abort(ErrorCode code, const std::string& message) const;
  bool aborted() const { return memory_.header().aborted_by.load(std::memory_order_acquire) != 0; }
  Status abort_status() const;
  // Why the group broke; ok while it works.
  Status health() const { return aborted() ? abort_status() : Status(); }
  // Call this after the data of other ranks has been read: ok if the group was not broken by then. If it was, a rank
  // that knew of the failure may have used its memory for something else, and this rank may have read that.
  Status broken_by_now() const {
    fence(std::memory_order_acquire);
    return health();
  }

  // Records this rank's known cause: a failure that it has seen in another group. The first one stays.
  void note(const std::string& cause) const;
  // The known cause of `rank`; empty: none.
  std::string known_cause(int rank) const;

  // Whether the process has ended or runs another program by now.
  bool process_gone(int rank) const { return memory_.peer(rank).is_gone(); }
  bool left(int rank) const { return memory_.state(rank).left.load(std::memory_order_acquire) != 0; }

 private:
  static constexpr int kPatience = 8;

  void wake(bool posted) const;

  const GroupMemory& memory_;
  const Group& group_;
  bool crowded_;
  mutable Mutex abort_mutex_;  // guards what this rank writes into its AbortReason and KnownCause
  int spins_;
  std::chrono::microseconds yield_for_;
};

// Repeats `step` until it returns true, the group breaks or the deadline passes. `on_check` is called every kCheckEvery
// and may end the wait with an error. The caller must not hold the group's lock: `step` takes it.
template <typename Step, typename OnCheck>
Status wait_until(const Waiting& waiting, Deadline deadline, const std::function<int()>& awaited, Step step,
                  OnCheck on_check) {
  for (int i = 0; i < waiting.spins(); ++i) {
    if (step()) return {};
    waiting.relax();
  }
  auto idle_since = std::chrono::steady_clock::now();
  auto last_check = idle_since;
  const std::function<bool()> done = [&] { return step(); };
  for (;;) {
    if (step()) return {};
    if (waiting.aborted()) return step() ? Status() : waiting.abort_status();
    const auto now = std::chrono::steady_clock::now();
    if (now - last_check >= kCheckEvery) {
      last_check = now;
      Status status = on_check(deadline.expired());
      if (!status.ok()) return step() ? Status() : status;
    }
    if (!deadline.is_never() && now >= deadline.when()) {
      Status status = on_check(true);
      if (!status.ok()) return step() ? Status() : status;
    }
    waiting.pause(idle_since, awaited, done);
  }
}

}  // namespace lockstep::comm
