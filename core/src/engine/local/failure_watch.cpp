// Finds out why a wait can no longer succeed. The error names the rank, the operation and its sequence number. Also:
// how the groups of one process tell one another of failures.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "engine/core/error_text.h"
#include "engine/core/process_state.h"
#include "engine/core/timing.h"
#include "local_group.h"
#include "plan.h"

namespace lockstep::comm {

std::string LocalGroup::describe(const Collective& collective) const {
  return comm::describe(collective.request().kind, collective.sequence(), name_);
}

std::string LocalGroup::last_call(int rank) const {
  const RankState& state = memory_.state(rank);
  const std::uint64_t current = state.current.load(std::memory_order_relaxed);
  if (current == 0) return "no call yet";
  const std::string call = fmt::format("{} #{}", to_string(kind_of(current)), sequence_of(current));
  const bool over = state.completed.load(std::memory_order_acquire) >= sequence_of(current);
  return over ? "last call " + call : "not through with " + call;
}

std::vector<int> LocalGroup::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (memory_.post(rank, sequence).state.load(std::memory_order_acquire) / 2 < sequence) ranks.push_back(rank);
  }
  return ranks;
}

Status LocalGroup::check_present(const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    const bool left = waiting_.left(rank);
    if (rank == memory_.rank() || !(left || waiting_.process_gone(rank))) continue;
    const std::string cause = waiting_.known_cause(rank);
    return {ErrorCode::kPeerFailed,
            caused(cause.empty() ? first_cause(health().message()) : cause,
                   fmt::format("{} (pid {}) {}", memory_.roster().name(rank), memory_.peer(rank).pid,
                               left ? "left the group" : memory_.peer(rank).how_gone()))};
  }
  return {};
}

Failure LocalGroup::failure() const {
  Failure failure{health(), {}, family()};
  if (failure.status.code() != ErrorCode::kPeerFailed) return failure;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank != memory_.rank() && waiting_.process_gone(rank) && !waiting_.left(rank))
      failure.dead.push_back(memory_.peer(rank).process.get());
  }
  return failure;
}

void LocalGroup::hear(const Failure& failure) {
  waiting_.note(first_cause(failure.status.message()));
  if (failure.family == family()) return waiting_.abort(failure.status.code(), failure.status.message());
  const auto is_dead = [&](int rank) {
    const Fd* const process = memory_.peer(rank).process.get();
    return !waiting_.left(rank) && std::find(failure.dead.begin(), failure.dead.end(), process) != failure.dead.end();
  };
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (is_dead(rank)) return waiting_.abort(failure.status.code(), failure.status.message());
  }
}

Status LocalGroup::blame(int rank, const std::string& when) {
  const bool left = waiting_.left(rank);
  const std::string cause = waiting_.known_cause(rank);
  const std::string what = fmt::format("{} (pid {}) {} {} ({}); first seen by {}{}", memory_.roster().name(rank),
                                       memory_.peer(rank).pid, left ? "left the group" : memory_.peer(rank).how_gone(),
                                       when, last_call(rank), me(), left && cause.empty() ? kLeftEarly : "");
  waiting_.abort(ErrorCode::kPeerFailed, caused(cause, what));
  return waiting_.abort_status();
}

Status LocalGroup::check(const Collective& collective, bool expired, Watch& watch) {
  const auto now = std::chrono::steady_clock::now();
  if (const std::uint64_t current = collective.tickets_done(); current != watch.progress) {
    watch.progress = current;
    watch.progressed = now;
  }
  int lost = -1;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank == memory_.rank()) continue;
    // The order matters: once a rank is seen to be gone, its last post is visible.
    const bool gone = waiting_.process_gone(rank);
    const bool left = waiting_.left(rank);
    const bool posted =
        memory_.post(rank, collective.sequence()).state.load(std::memory_order_acquire) / 2 >= collective.sequence();
    if (!gone && !left) continue;
    // A rank that has posted and then left has done its part.
    if (posted && (left || now - watch.progressed < kDeadTicket)) continue;
    // A death is the cause: other ranks may have left because of it.
    if (lost < 0 || (!left && waiting_.left(lost))) lost = rank;
  }
  if (lost >= 0) {
    const std::uint64_t call = sequence_of(memory_.state(lost).current.load(std::memory_order_relaxed));
    return blame(lost, (call >= collective.sequence() ? "in " : "before ") + describe(collective));
  }
  return expired ? time_out(collective, now - watch.progressed) : Status();
}

// A rank without a post has not called the collective, or has stopped while it wrote its post.
std::vector<int> LocalGroup::never_called(std::uint64_t sequence) const {
  std::vector<int> ranks = absent(sequence);
  std::erase_if(ranks, [&](int rank) {
    return rank == memory_.rank() ||
           sequence_of(memory_.state(rank).current.load(std::memory_order_relaxed)) >= sequence;
  });
  return ranks;
}

std::vector<std::string> LocalGroup::with_calls(const std::vector<int>& ranks) const {
  std::vector<std::string> texts;
  for (const int rank : ranks) {
    const std::string condition = condition_of(*memory_.peer(rank).process);
    texts.push_back(fmt::format("{} ({}{}{})", memory_.roster().number(rank), last_call(rank),
                                condition.empty() ? "" : ", ", condition));
  }
  return texts;
}

// The known cause of the first of these ranks that has one.
std::string LocalGroup::cause_among(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (std::string cause = waiting_.known_cause(rank); !cause.empty()) return cause;
  }
  return {};
}

// "1 (stopped by a signal)" for each rank that stands still, without the ranks that the error has `named` already.
std::vector<std::string> LocalGroup::who_stands_still(const std::vector<int>& named) const {
  std::vector<std::string> frozen;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank == memory_.rank() || std::find(named.begin(), named.end(), rank) != named.end()) continue;
    const std::string condition = condition_of(*memory_.peer(rank).process);
    if (!condition.empty()) frozen.push_back(fmt::format("{} ({})", memory_.roster().number(rank), condition));
  }
  return frozen;
}

// The ranks that hold up `collective`: those that neither sleep nor are finished with it.
std::string LocalGroup::who_is_busy(const Collective& collective) const {
  std::vector<int> busy;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const RankState& state = memory_.state(rank);
    if (rank == memory_.rank() || state.completed.load(std::memory_order_acquire) >= collective.sequence()) continue;
    const bool posted =
        memory_.post(rank, collective.sequence()).state.load(std::memory_order_acquire) / 2 >= collective.sequence();
    const bool asleep = state.waiting.load(std::memory_order_relaxed) != kNotWaiting;
    if (!posted || (collective.wants_stream() ? behind_in_stream(rank) : !asleep)) busy.push_back(rank);
  }
  return busy.empty() ? "somebody" : roster_.list(busy);
}

// The collective waits for its turn: the ranks that hold it up are those that have not called the oldest.
Status LocalGroup::time_out_in_queue(std::uint64_t oldest) {
  const std::vector<int> missing = never_called(oldest);
  const std::string why =
      missing.empty() ? std::string() : ": " + roster_.list(with_calls(missing)) + " never called the oldest";
  waiting_.abort(ErrorCode::kTimeout,
                 caused(cause_among(missing),
                        fmt::format("{} timed out with more than {} operations under way in group '{}'{}{}", me(),
                                    kRing, name_, why, stand_still(who_stands_still(missing), roster_))));
  return waiting_.abort_status();
}

Status LocalGroup::time_out(const Collective& collective, std::chrono::steady_clock::duration idle) {
  std::uint64_t oldest = 0;
  {
    MutexLock lock(mutex_);
    if (!collective.posted()) oldest = posted_ + 1 - kRing;
  }
  if (oldest != 0) return time_out_in_queue(oldest);
  const std::vector<int> missing = never_called(collective.sequence());
  const HeldUpBy ranks{with_calls(missing), who_stands_still(missing),
                       fmt::format("{} made no progress inside it for {:.1f} s", who_is_busy(collective),
                                   std::chrono::duration<double>(idle).count())};
  waiting_.abort(ErrorCode::kTimeout,
                 caused(cause_among(missing), describe_timeout(describe(collective), me(), ranks, roster_)));
  return waiting_.abort_status();
}

bool LocalGroup::behind_in_stream(int rank) const {
  const RankState& mine = memory_.state(memory_.rank());
  const RankState& other = memory_.state(rank);
  return other.laid_out.load() < mine.laid_out.load() || other.reduced.load() < mine.reduced.load();
}

Status LocalGroup::check(const Transfer& transfer, bool expired) {
  int alive = 0;
  std::vector<std::string> gone_ranks;
  std::string cause;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (transfer.peer != kAnySource && rank != transfer.peer) continue;
    const bool died = rank != memory_.rank() && waiting_.process_gone(rank);
    const bool left = rank != memory_.rank() && waiting_.left(rank);
    if (!died && !left) {
      ++alive;
      continue;
    }
    gone_ranks.push_back(fmt::format("{} (pid {}) {}", memory_.roster().name(rank), memory_.peer(rank).pid,
                                     left ? "left the group" : memory_.peer(rank).how_gone()));
    if (cause.empty()) cause = waiting_.known_cause(rank);
  }
  const bool only_self_left = transfer.peer == kAnySource && alive == 1 && memory_.size() > 1;
  if (alive == 0 || only_self_left) {
    // The rank may have sent the message before it ended.
    MutexLock lock(mutex_);
    mailbox_.progress();
    if (transfer.over) return {};
    waiting_.abort(ErrorCode::kPeerFailed,
                   caused(cause, fmt::format("{} before {} of {} was done", fmt::join(gone_ranks, ", "),
                                             comm::describe(transfer, names()), me())));
    return waiting_.abort_status();
  }
  if (!expired) return {};
  std::vector<int> senders{transfer.peer};
  if (transfer.peer == kAnySource) {
    senders.resize(memory_.size());
    std::iota(senders.begin(), senders.end(), 0);
  }
  cause = cause_among(senders);
  waiting_.abort(ErrorCode::kTimeout, caused(cause, describe_timeout(transfer, names(), rank_, who_stands_still({}))));
  return waiting_.abort_status();
}

}  // namespace lockstep::comm
