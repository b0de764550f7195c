// How a training is asked to stop: by a signal, and by what the ranks tell one another.
#pragma once

#include <torch/types.h>

#include <array>
#include <csignal>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::trainer_detail {

// Notes SIGINT and SIGTERM instead of ending the process at once.
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

// The ranks tell one another that they were asked to stop, without waiting for one another after each step.
//
// A reason is 0 (not asked) or a positive number. All ranks get the same answer, and the greatest reason of any rank.
class StopVote {
 public:
  // Collective, after a step that others follow. The ranks learn while they train of a rank that was asked alone: they
  // stop after the next step. Where all were asked in the same step they stop after it. So does a rank without others.
  int after_step(int mine);
  // Collective. Waits for the other ranks, and learns of any that was asked until now.
  int now(int mine);
  // After an error: what is under way is no longer wanted.
  void forget() { begun_.reset(); }

 private:
  struct Exchange {
    torch::Tensor reasons;  // the greatest of all ranks, and minus the least
    c10::intrusive_ptr<c10d::Work> work;
  };
  struct Reasons {
    int least = 0, greatest = 0;
  };

  static Exchange begin(int mine);
  static Reasons end(Exchange& exchange);
  static int agree(int mine);  // waits for the other ranks
  int earlier();               // what the ranks said after the step before

  std::optional<Exchange> begun_;
};

}  // namespace lockstep::trainer_detail
