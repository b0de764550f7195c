// A point in time by which an operation must be done. The public call makes it once and passes it down unchanged, so
// that a call which waits several times does not wait several timeouts.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A negative duration, or one of more than a year, means "never". The argument keeps the caller's unit, because a
  // huge duration does not fit into nanoseconds.
  template <typename Number, typename Unit>
  static Deadline after(std::chrono::duration<Number, Unit> timeout) {
    if (timeout < timeout.zero() || timeout > std::chrono::hours(24 * 365)) return never();
    return Deadline(Clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(timeout));
  }
  static Deadline at(Clock::time_point when) { return Deadline(when); }  // the latest time_point: never
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }

  // Time left, never negative; a year for `never()`.
  std::chrono::nanoseconds remaining() const {
    if (is_never()) return std::chrono::hours(24 * 365);
    return std::max(std::chrono::nanoseconds::zero(), std::chrono::nanoseconds(when_ - Clock::now()));
  }
  // remaining() rounded up to milliseconds: zero only after the deadline.
  std::chrono::milliseconds remaining_ms() const { return std::chrono::ceil<std::chrono::milliseconds>(remaining()); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

inline Deadline earlier(Deadline left, Deadline right) {
  return left.when() < right.when() ? left : right;
}

}  // namespace lockstep
