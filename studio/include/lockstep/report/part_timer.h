// Where the time of a step goes: input, compute, communication. A loop says when the next part begins:
//
//   PartTimer timer(Part::kInput);
//   ...
//   for (const Batch& batch : loader) {  // waiting for the loader is input
//     timer.begin(Part::kCompute);
//     ...
//     timer.begin(Part::kInput);  // what comes next
//     ...
//   }
//
// Work of a GPU that was only started is counted where the program waits for it. For one thread.
#pragma once

#include <chrono>

namespace lockstep::report {

enum class Part { kInput, kCompute, kCommunication, kOther };

struct PartTimes {  // seconds
  double input = 0.0;
  double compute = 0.0;
  double communication = 0.0;
  double other = 0.0;

  double total() const { return input + compute + communication + other; }
  PartTimes& operator+=(const PartTimes& more) {
    input += more.input;
    compute += more.compute;
    communication += more.communication;
    other += more.other;
    return *this;
  }
};

class PartTimer {
 public:
  explicit PartTimer(Part first = Part::kOther) : part_(first) {}

  // From now on time counts for `part`.
  void begin(Part part) {
    count();
    part_ = part;
  }
  // The times since the last lap, or since the beginning.
  PartTimes lap() {
    count();
    const PartTimes times = times_;
    times_ = {};
    return times;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void count() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - since_).count();
    since_ = now;
    switch (part_) {
      case Part::kInput: times_.input += seconds; break;
      case Part::kCompute: times_.compute += seconds; break;
      case Part::kCommunication: times_.communication += seconds; break;
      case Part::kOther: times_.other += seconds; break;
    }
  }

  Part part_;
  Clock::time_point since_ = Clock::now();
  PartTimes times_;
};

}  // namespace lockstep::report
