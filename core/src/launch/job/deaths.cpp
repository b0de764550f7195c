// How a worker group goes on without workers that have died (--min-workers, --newcomers).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "launch/job/first_failure.h"
#include "launch/job/worker_group.h"
#include "launch/world/newcomers_part.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/newcomer.h"

namespace lockstep::launch {
namespace {

// The launcher itself serves the store.
constexpr std::chrono::seconds kOwnStoreTime{1};
// Workers that fail so soon after one another may have failed because of one another, whatever --grace.
constexpr std::chrono::seconds kTogether{1};

// The first of those that failed one soon after another: the others may have failed because of it.
const Failure& cause_of_the_last(const std::vector<Failure>& deaths, std::chrono::nanoseconds soon) {
  auto first = std::prev(deaths.end());
  while (first != deaths.begin() && first->exit.when - std::prev(first)->exit.when <= soon) --first;
  return *first;
}

}  // namespace

void WorkerGroup::survive(Workers& workers, const Exit& exit) {
  static_cast<void>(see_who_has_joined());
  const bool was_newcomer = roster_->is_newcomer(exit.index);
  const bool is_death = exit.failed() && !(was_newcomer && roster_->newcomers_wait_in_vain());
  Roster::Then then = exit.failed() ? roster_->died(exit.index) : roster_->ended(exit.index);
  if (is_death) note_death(exit, was_newcomer);
  if (!was_newcomer) {
    (exit.failed() ? died_ : ended_).push_back(job_.first_rank + exit.index);
    if (look_at_.is_never()) look_at_ = Deadline::after(kLookAtEarlyEnds);
  }
  if (then == Roster::Then::kReplace) then = replace(workers, exit.index);
  if (then == Roster::Then::kGoOn) tell_that_nobody_comes(exit.index);
  if (was_newcomer && exit.failed() && then != Roster::Then::kTooFew) forget_claim(job_.first_rank + exit.index);
  const std::string what = what_follows(then);
  if (is_death && then != Roster::Then::kTooFew) watch_.survived_a_death();
  if (is_death) {
    const Failure& failure = *last_death_;
    consoles_.err().say((failure.stderr_seen ? "" : "\n") + format_failure(failure, "failed") + "\n  " + what);
  } else if (then == Roster::Then::kTooFew) {
    consoles_.err().say("lockstep: " + what);
  }
  if (then == Roster::Then::kTooFew) return end_for_lack_of_workers(workers);
  if (!roster_->replaces()) end_reserves();
  if (roster_->newcomers_wait_in_vain() && end_newcomers_at_.is_never()) {
    end_newcomers_at_ = Deadline::after(options_.grace);
  }
}

// Ends the processes on standby: no worker is replaced any more.
void WorkerGroup::end_reserves() {
  const Status ended = reserves_.end();
  if (!ended.ok()) consoles_.err().say("lockstep: " + ended.message());
}

// Whether the store has answered for all newcomers.
bool WorkerGroup::see_who_has_joined() {
  bool is_known = true;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    if (!roster_->is_newcomer(local_rank) || newcomers_ == nullptr) continue;
    const std::vector<std::string> key{joined_key(job_.first_rank + local_rank)};
    const Result<bool> has_joined = newcomers_->check(key);
    is_known = is_known && has_joined.ok();
    if (!has_joined.ok() || !has_joined.value()) continue;
    roster_->joined(local_rank);
    // The job has survived this worker's death, which is no cause of what follows.
    std::erase_if(deaths_, [&](const Failure& failure) { return failure.local_rank == local_rank; });
  }
  return is_known;
}

void WorkerGroup::note_death(const Exit& exit, bool is_newcomer) {
  Failure failure = make_failure(exit);
  failure.is_newcomer = is_newcomer;
  note_tail(failure);
  const auto later =
      std::find_if(deaths_.begin(), deaths_.end(), [&](const Failure& other) { return other.exit.when > exit.when; });
  deaths_.insert(later, failure);
  last_death_ = std::move(failure);
  recorders_.dump(consoles_.err(), ++number_of_deaths_);
}

Roster::Then WorkerGroup::replace(Workers& workers, int local_rank) {
  auto started = start_newcomer(local_rank);
  relay_.started();
  if (!started.ok()) {
    consoles_.err().say(fmt::format("lockstep: rank {} cannot be replaced: {}", job_.first_rank + local_rank,
                                    started.status().message()));
    return roster_->not_replaced(local_rank);
  }
  workers.add(local_rank, std::move(started).value());
  exited_[static_cast<std::size_t>(local_rank)] = false;
  return Roster::Then::kReplace;
}

Result<ProcessTree> WorkerGroup::start_newcomer(int local_rank) {
  if (newcomers_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(newcomers_, newcomers_part(job_.store, job_.job_key, kOwnStoreTime));
  }
  // Of an earlier newcomer for this rank.
  LOCKSTEP_RETURN_IF_ERROR(newcomers_->delete_key(joined_key(job_.first_rank + local_rank)).status());
  LOCKSTEP_ASSIGN_OR_RETURN(const Command command, make_command(local_rank, newcomer_variables(job_, local_rank)));
  auto waiting = reserves_.release(local_rank, command, signals_.fd());
  if (roster_->replaces()) reserves_.prepare(job_, local_rank, command);
  if (waiting) return std::move(*waiting);
  return ProcessTree::start({&command, 1}, signals_.fd(), job_.error_files->folder());
}

std::string WorkerGroup::what_follows(Roster::Then then) const {
  const int left = roster_->left();
  if (then == Roster::Then::kGoOn) return fmt::format("the job goes on with {} of {} workers", left, options_.workers);
  if (then == Roster::Then::kReplace) return "a new process takes its place";
  if (!roster_->can_go_on()) return "no worker is left that has the state of the training: the job ends";
  return fmt::format("{} of {} workers {} left, fewer than --min-workers {}: the job ends", left, options_.workers,
                     left == 1 ? "is" : "are", options_.min_workers);
}

// The other workers would wait for a newcomer in the place of this one, which has ended and is not replaced.
void WorkerGroup::tell_that_nobody_comes(int local_rank) {
  if (options_.max_newcomers == 0) return;
  const int rank = job_.first_rank + local_rank;
  Result<std::shared_ptr<comm::Store>> part = newcomers_;
  if (newcomers_ == nullptr) part = newcomers_part(job_.store, job_.job_key, kOwnStoreTime);
  if (part.ok()) newcomers_ = part.value();
  const Status told = part.ok() ? part.value()->set(nobody_comes_key(rank), "1") : part.status();
  if (!told.ok())
    log::info(
        fmt::format("the workers were not told that nobody takes the place of rank {}: {}", rank, told.message()));
}

// A newcomer that has not joined cannot have caused a later failure of the others.
void WorkerGroup::forget_claim(int rank) const {
  const Status forgotten = forget_first_failure(rank, job_.store, job_.job_key);
  if (!forgotten.ok()) log::info(fmt::format("the claim of rank {} stays: {}", rank, forgotten.message()));
}

void WorkerGroup::end_for_lack_of_workers(Workers& workers) {
  result_.failure = cause_of_the_last(deaths_, std::max<std::chrono::nanoseconds>(options_.grace, kTogether));
  tail_is_noted_ = true;
  const std::optional<int> first = claimed();
  const auto dead = std::find_if(deaths_.rbegin(), deaths_.rend(),
                                 [&](const Failure& failure) { return first && failure.local_rank == *first; });
  if (dead != deaths_.rend()) result_.failure = *dead;
  awaited_ = claimed_by_running();
  if (!awaited_) return stop_after_failure(workers);
  stop_at_ = Deadline::after(options_.grace);
}

void WorkerGroup::end_newcomers(Workers& workers) {
  end_newcomers_at_ = Deadline::never();
  if (!see_who_has_joined()) {  // one may be a rank that is still at work
    end_newcomers_at_ = Deadline::after(std::max<std::chrono::milliseconds>(options_.grace, kOwnStoreTime));
    return;
  }
  if (!roster_->newcomers_wait_in_vain()) return;
  log::info("newcomers wait for a place although no other worker is left; they are ended");
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    if (roster_->is_newcomer(local_rank)) static_cast<void>(workers.signal(SIGKILL, local_rank));
  }
}

void WorkerGroup::prepare_reserves(const std::vector<Command>& commands) {
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    Command newcomer = commands[static_cast<std::size_t>(local_rank)];
    newcomer.environment = merge_environment(newcomer.environment, newcomer_variables(job_, local_rank));
    reserves_.prepare(job_, local_rank, newcomer);
  }
}

}  // namespace lockstep::launch
