// Notes SIGINT and SIGTERM instead of ending the process at once.
#pragma once

#include <array>
#include <csignal>

namespace lockstep::trainer_detail {

class StopSignals {
 public:
  // Signals that the process ignores, or has a handler of its own for, stay as they are. One at a time in a process.
  explicit StopSignals(bool wanted);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that came since the construction, or 0.
  static int pending() noexcept;

 private:
  struct Taken {
    int number = 0;
    bool taken = false;
    struct sigaction before {};
  };
  std::array<Taken, 2> signals_{{{SIGINT}, {SIGTERM}}};
};

}  // namespace lockstep::trainer_detail
