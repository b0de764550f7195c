#include "launch/job/roster.h"

#include <algorithm>

namespace lockstep::launch {

int Roster::count(State state) const {
  return static_cast<int>(std::count(states_.begin(), states_.end(), state));
}

// A newcomer gets the state of the training from a worker that runs. When one has ended, the training is over.
bool Roster::replaces() const {
  return replacements_ > 0 && count(State::kRuns) > 0 && count(State::kEnded) == 0;
}

Roster::Then Roster::ended(int worker) {
  states_[static_cast<std::size_t>(worker)] = is_newcomer(worker) ? State::kGone : State::kEnded;
  return go_on_if_enough();
}

Roster::Then Roster::died(int worker) {
  const bool was_needed = !is_newcomer(worker) || !newcomers_wait_in_vain();
  states_[static_cast<std::size_t>(worker)] = State::kGone;
  if (!was_needed) return go_on_if_enough();
  if (!can_go_on()) return Then::kTooFew;
  if (!replaces()) return go_on_if_enough();
  states_[static_cast<std::size_t>(worker)] = State::kNewcomer;
  --replacements_;
  return go_on_if_enough() == Then::kTooFew ? Then::kTooFew : Then::kReplace;
}

void Roster::joined(int worker) {
  if (is_newcomer(worker)) states_[static_cast<std::size_t>(worker)] = State::kRuns;
}

Roster::Then Roster::not_replaced(int worker) {
  states_[static_cast<std::size_t>(worker)] = State::kGone;
  return go_on_if_enough();
}

}  // namespace lockstep::launch
