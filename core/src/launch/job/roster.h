// Roster: which workers of a job run, have ended or were replaced, and whether the job goes on without one that has
// died (--min-workers, --newcomers). It only counts: it starts and ends nothing.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::launch {

class Roster {
 public:
  // `fewest`: the job goes on while at least as many workers have ended with 0, run or are being replaced.
  // `replacements`: how many workers may be replaced.
  Roster(int workers, int fewest, int replacements)
      : states_(static_cast<std::size_t>(workers), State::kRuns), fewest_(fewest), replacements_(replacements) {}

  // What follows the end of a worker. Workers have numbers from 0.
  enum class Then {
    kGoOn,
    kReplace,  // start a newcomer with this number
    kTooFew,
  };
  // The worker has ended with exit code 0.
  Then ended(int worker);
  Then died(int worker);
  // A newcomer has become a rank of the others' world: it has all that a worker of the start has.
  void joined(int worker);
  // A newcomer could not be started.
  Then not_replaced(int worker);

  // Has not joined. Such a process knows nothing of the training.
  bool is_newcomer(int worker) const { return states_[static_cast<std::size_t>(worker)] == State::kNewcomer; }
  // No worker is left whose place a newcomer could take.
  bool newcomers_wait_in_vain() const { return count(State::kRuns) == 0 && count(State::kNewcomer) > 0; }
  // Whether the next worker that dies is replaced.
  bool replaces() const;
  // Whether one is left that has the state of the training, or has ended with 0.
  bool can_go_on() const { return count(State::kRuns) + count(State::kEnded) > 0; }
  // Those that run, newcomers among them, or have ended with 0.
  int left() const { return count(State::kRuns) + count(State::kNewcomer) + count(State::kEnded); }

 private:
  enum class State {
    kRuns,
    kNewcomer,
    kEnded,
    kGone,  // has died, or was a newcomer that nobody needed
  };
  int count(State state) const;
  Then go_on_if_enough() const { return left() < fewest_ ? Then::kTooFew : Then::kGoOn; }

  std::vector<State> states_;
  int fewest_;
  int replacements_;  // that are left
};

}  // namespace lockstep::launch
