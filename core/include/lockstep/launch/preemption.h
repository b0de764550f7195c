// PreemptionWatch: all ranks leave a training loop at the same step when a scheduler takes the machine away.
//
//   auto watch = lockstep::launch::PreemptionWatch::start();
//   for (long step = first; step < last; ++step) {
//     if (watch.value()->should_leave(step).value()) {
//       save_checkpoint(step);
//       break;
//     }
//     train(step);
//   }
//
// Slurm (`--signal=TERM@60`, preemption), Kubernetes and `lockstep run` announce the end by a signal, which reaches the
// ranks at different moments, or only some of them. The watch turns it into a step on which all ranks agree.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::launch {

// For one thread. Ranks must not be more than one step apart when they ask, which holds for every loop whose steps
// contain a collective of all ranks (an optimizer step under DistributedDataParallel).
class PreemptionWatch {
 public:
  // Watches for SIGTERM and SIGUSR1. While the watch lives, these signals do not end the process; a launcher that has
  // asked its workers to end still kills them after its grace time.
  static std::vector<int> default_signals();

  // Makes a watch on the launcher's store (LOCKSTEP_STORE). A world of one needs no store. kInvalidArgument: there are
  // several ranks, and the variable is not set; then use the other form. kUnavailable: the store cannot be reached. One
  // watch at a time.
  static Result<std::unique_ptr<PreemptionWatch>> start(const std::vector<int>& signals = default_signals(),
                                                        const Environment& environment = Environment::of_process());
  // Makes a watch on a store that all ranks share; nullptr for a world of one.
  static Result<std::unique_ptr<PreemptionWatch>> start(std::shared_ptr<comm::Store> store, int world_size,
                                                        const std::vector<int>& signals = default_signals());
  // Gives the signals back the meaning that they had before.
  ~PreemptionWatch();
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;

  // Call it before each step, on every rank, with growing step numbers. Returns true on all ranks at the same step: two
  // steps after the step in which the last rank has learned of the signal. In a world of one it returns true at once.
  // Asks the store every 100 ms, and before each step once this rank knows of a signal. A question to the store blocks
  // for a round trip. Returns an error of the store.
  Result<bool> should_leave(long step);

  // Does what a signal to this rank does.
  void request() { requested_ = true; }

 private:
  class Signals;
  PreemptionWatch(std::shared_ptr<comm::Store> store, int world_size);
  Result<bool> heard();

  std::unique_ptr<Signals> signals_;
  std::shared_ptr<comm::Store> store_;
  const int world_size_;
  bool requested_ = false;
  bool announced_ = false;     // this rank has told the other ranks of a signal
  bool acknowledged_ = false;  // this rank has said that it knows of a signal
  long leave_at_ = -1;
  Deadline ask_again_ = Deadline::after(std::chrono::nanoseconds(0));
};

}  // namespace lockstep::launch
