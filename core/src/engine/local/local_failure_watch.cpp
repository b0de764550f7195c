#include "local_failure_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/host.h"
#include "engine/core/error_text.h"
#include "engine/core/failure.h"
#include "engine/core/long_wait.h"
#include "engine/core/timing.h"

namespace lockstep::comm {
namespace {

bool has_posted(const GroupMemory& memory, int rank, std::uint64_t sequence) {
  return memory.post(rank, sequence).state.load(std::memory_order_acquire) / 2 >= sequence;
}

std::string last_call(const GroupMemory& memory, int rank) {
  const RankState& state = memory.state(rank);
  std::uint64_t current = state.current.load(std::memory_order_acquire);
  if (current == 0) return "no call yet";
  std::string call;
  // A rank that goes on meanwhile uses the slot of the place again.
  for (int tries = 0; tries < 10; ++tries) {
    call = fmt::format("{} #{}{}", to_string(kind_of(current)), sequence_of(current),
                       memory.call_place(rank, sequence_of(current)));
    const std::uint64_t before = std::exchange(current, state.current.load(std::memory_order_acquire));
    if (before == current) break;
  }
  const bool over = state.completed.load(std::memory_order_acquire) >= sequence_of(current);
  return over ? "last call " + call : "not through with " + call;
}

std::vector<int> without_post(const GroupMemory& memory, std::uint64_t sequence) {
  std::vector<int> ranks;
  for (int rank = 0; rank < memory.size(); ++rank) {
    if (!has_posted(memory, rank, sequence)) ranks.push_back(rank);
  }
  return ranks;
}

// A rank without a post has not called the collective, or has stopped while it wrote its post.
std::vector<int> never_called(const GroupMemory& memory, std::uint64_t sequence) {
  std::vector<int> ranks = without_post(memory, sequence);
  std::erase_if(ranks, [&](int rank) {
    return rank == memory.rank() || sequence_of(memory.state(rank).current.load(std::memory_order_relaxed)) >= sequence;
  });
  return ranks;
}

// Where ranks are that have not called collective `sequence`; 0: that are missed for another reason.
std::vector<std::string> where_absent(const GroupMemory& memory, const std::vector<int>& ranks, std::uint64_t sequence,
                                      const Watch& watch) {
  return describe_absent(ranks, memory.roster(), [&](int rank) {
    AbsentRank absent;
    absent.rank = rank;
    absent.last_call = last_call(memory, rank);
    const std::uint64_t called = sequence_of(memory.state(rank).current.load(std::memory_order_relaxed));
    if (sequence > called) absent.behind = sequence - called;
    absent.waits_for = memory.wait_note(rank).read();
    if (!watch.last_calls.empty() && watch.last_calls[rank].over)
      absent.idle = whole_seconds_since(watch.last_calls[rank].since);
    absent.condition = condition_of(*memory.peer(rank).process);
    return absent;
  });
}

// From where the ranks have called collective `sequence`.
std::string callers(const GroupMemory& memory, std::uint64_t sequence) {
  std::map<int, std::string> places;
  for (int rank = 0; rank < memory.size(); ++rank) {
    if (has_posted(memory, rank, sequence)) places[rank] = memory.call_place(rank, sequence);
  }
  return describe_callers(places, memory.roster());
}

// "1 (stopped by a signal)" for each rank that stands still, without the ranks that the error has `named` already.
std::vector<std::string> who_stands_still(const GroupMemory& memory, const std::vector<int>& named) {
  std::vector<std::string> frozen;
  for (int rank = 0; rank < memory.size(); ++rank) {
    if (rank == memory.rank() || std::find(named.begin(), named.end(), rank) != named.end()) continue;
    const std::string condition = condition_of(*memory.peer(rank).process);
    if (!condition.empty()) frozen.push_back(fmt::format("{} ({})", memory.roster().number(rank), condition));
  }
  return frozen;
}

bool behind_in_stream(const GroupMemory& memory, int rank) {
  const RankState& mine = memory.state(memory.rank());
  const RankState& other = memory.state(rank);
  return other.laid_out.load() < mine.laid_out.load() || other.reduced.load() < mine.reduced.load();
}

// A number that grows while the ranks move the data of `collective`.
std::uint64_t progress_of(const GroupMemory& memory, const Collective& collective) {
  std::uint64_t progress = collective.tickets_done();
  for (int rank = 0; rank < memory.size() && collective.wants_stream(); ++rank)
    progress += memory.state(rank).laid_out.load() + memory.state(rank).reduced.load();
  return progress;
}

// A rank holds up `collective` while it neither sleeps nor has finished the collective.
std::string who_is_busy(const GroupMemory& memory, const Collective& collective) {
  std::vector<int> busy;
  for (int rank = 0; rank < memory.size(); ++rank) {
    const RankState& state = memory.state(rank);
    if (rank == memory.rank() || state.completed.load(std::memory_order_acquire) >= collective.sequence()) continue;
    const bool posted = has_posted(memory, rank, collective.sequence());
    const bool asleep = state.waiting.load(std::memory_order_relaxed) != kNotWaiting;
    if (!posted || (collective.wants_stream() ? behind_in_stream(memory, rank) : !asleep)) busy.push_back(rank);
  }
  return busy.empty() ? "somebody" : memory.roster().list(busy);
}

}  // namespace

void LocalFailureWatch::look(Watch& watch) const {
  const auto now = std::chrono::steady_clock::now();
  watch.last_calls.resize(memory_.size());
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const RankState& state = memory_.state(rank);
    const std::uint64_t call = state.current.load(std::memory_order_relaxed);
    const bool over = state.completed.load(std::memory_order_relaxed) >= sequence_of(call);
    Watch::LastCall& last = watch.last_calls[rank];
    if (last.call != call || last.over != over || last.since == Watch::Time()) last = {call, over, now};
  }
}

// "rank 1 (pid 7 on node1) left the group".
std::string LocalFailureWatch::gone(int rank) const {
  return fmt::format("{} (pid {} on {}) {}", memory_.roster().name(rank), memory_.peer(rank).pid, host_name(),
                     waiting_.left(rank) ? "left the group" : memory_.peer(rank).how_gone());
}

Status LocalFailureWatch::check_present(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (rank == memory_.rank() || !(waiting_.left(rank) || waiting_.process_gone(rank))) continue;
    const std::string cause = waiting_.known_cause(rank);
    return loss(cause.empty() ? first_cause(waiting_.health().message()) : cause, gone(rank));
  }
  return {};
}

std::vector<int> LocalFailureWatch::absent(std::uint64_t sequence) const {
  return without_post(memory_, sequence);
}

std::vector<const Fd*> LocalFailureWatch::dead() const {
  std::vector<const Fd*> processes;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank != memory_.rank() && waiting_.process_gone(rank) && !waiting_.left(rank))
      processes.push_back(memory_.peer(rank).process.get());
  }
  return processes;
}

bool LocalFailureWatch::has_any_of(const std::vector<const Fd*>& processes) const {
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const Fd* const process = memory_.peer(rank).process.get();
    if (!waiting_.left(rank) && std::find(processes.begin(), processes.end(), process) != processes.end()) return true;
  }
  return false;
}

// "rank 1 (pid 7 on node1) died <when> (last call ...)".
Status LocalFailureWatch::loss_of(int rank, const std::string& when) const {
  const std::string cause = waiting_.known_cause(rank);
  const std::string what = fmt::format("{} {} ({}); first seen by {}{}", gone(rank), when, last_call(memory_, rank),
                                       me(), waiting_.left(rank) && cause.empty() ? kLeftEarly : "");
  return loss(cause, what);
}

Status LocalFailureWatch::check(const Collective& collective, Watch& watch) const {
  const auto now = std::chrono::steady_clock::now();
  if (const std::uint64_t current = progress_of(memory_, collective); current != watch.progress) {
    watch.progress = current;
    watch.progressed = now;
  }
  int lost = -1;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank == memory_.rank()) continue;
    // The order matters: once a rank is seen to be gone, its last post is visible.
    const bool gone = waiting_.process_gone(rank);
    const bool left = waiting_.left(rank);
    const bool posted = has_posted(memory_, rank, collective.sequence());
    if (!gone && !left) continue;
    // A rank that has posted and then left has done its part. So may one that has posted and then died.
    const auto holds_up = [&] {
      return collective.wants_stream() ? behind_in_stream(memory_, rank) : collective.is_held_up_by(rank);
    };
    if (posted && (left || (now - watch.progressed < kDeadTicket && !holds_up()))) continue;
    // A death is the cause: other ranks may have left because of it.
    if (lost < 0 || (!left && waiting_.left(lost))) lost = rank;
  }
  if (lost < 0) return {};
  const std::uint64_t call = sequence_of(memory_.state(lost).current.load(std::memory_order_relaxed));
  return loss_of(lost, (call >= collective.sequence() ? "in " : "before ") + collective.describe());
}

// The known cause of the first of these ranks that has one.
std::string LocalFailureWatch::cause_among(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (std::string cause = waiting_.known_cause(rank); !cause.empty()) return cause;
  }
  return {};
}

// The queue waits for the collective `awaited`; ranks that have not called it hold up the queue.
std::string LocalFailureWatch::why_queue_is_late(std::uint64_t awaited, const Watch& watch) const {
  const Roster& roster = memory_.roster();
  const std::vector<int> missing = never_called(memory_, awaited);
  const std::string why = missing.empty() ? std::string()
                                          : fmt::format(": {} never called the oldest",
                                                        roster.list(where_absent(memory_, missing, awaited, watch)));
  return fmt::format("more than {} operations under way in group '{}'{}{}{}", kRing, memory_.name(), why,
                     stand_still(who_stands_still(memory_, missing), roster), callers(memory_, awaited));
}

Status LocalFailureWatch::timed_out_in_queue(std::uint64_t awaited, const Watch& watch) const {
  return {ErrorCode::kTimeout, caused(cause_among(never_called(memory_, awaited)),
                                      fmt::format("{} timed out with {}", me(), why_queue_is_late(awaited, watch)))};
}

HeldUpBy LocalFailureWatch::held_up_by(const Collective& collective, const Watch& watch) const {
  const std::chrono::duration<double> idle = std::chrono::steady_clock::now() - watch.progressed;
  const std::vector<int> missing = never_called(memory_, collective.sequence());
  return {where_absent(memory_, missing, collective.sequence(), watch), who_stands_still(memory_, missing),
          still_moves(watch, watch.progressed) ? kMovesInside
                                               : fmt::format("but {} made no progress inside it for {:.1f} s",
                                                             who_is_busy(memory_, collective), idle.count()),
          callers(memory_, collective.sequence())};
}

std::string LocalFailureWatch::why_late(const Collective& collective, const Watch& watch) const {
  return describe(held_up_by(collective, watch), memory_.roster());
}

Status LocalFailureWatch::timed_out(const Collective& collective, const Watch& watch) const {
  const std::string text =
      describe_timeout(collective.describe(), me(), held_up_by(collective, watch), memory_.roster());
  return {ErrorCode::kTimeout, caused(cause_among(never_called(memory_, collective.sequence())), text)};
}

Status LocalFailureWatch::check(const Transfer& transfer) const {
  int alive = 0;
  std::vector<std::string> gone_ranks;
  std::string cause;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (transfer.peer != kAnySource && rank != transfer.peer) continue;
    if (rank == memory_.rank() || !(waiting_.process_gone(rank) || waiting_.left(rank))) {
      ++alive;
      continue;
    }
    gone_ranks.push_back(gone(rank));
    if (cause.empty()) cause = waiting_.known_cause(rank);
  }
  const bool only_self_left = transfer.peer == kAnySource && alive == 1 && memory_.size() > 1;
  if (alive > 0 && !only_self_left) return {};
  return loss(cause, fmt::format("{} before {} of {}{} was done", fmt::join(gone_ranks, ", "),
                                 describe(transfer, memory_.names()), me(), describe_place(transfer.place)));
}

// The ranks that could send, or take, the message.
std::vector<int> LocalFailureWatch::peers_of(const Transfer& transfer) const {
  if (transfer.peer != kAnySource) return {transfer.peer};
  std::vector<int> senders(memory_.size());
  std::iota(senders.begin(), senders.end(), 0);
  if (memory_.size() > 1) std::erase(senders, memory_.rank());
  return senders;
}

HeldUpBy LocalFailureWatch::held_up_by(const Transfer& transfer, const Watch& watch) const {
  const std::vector<int> peers = peers_of(transfer);
  return {where_absent(memory_, peers, 0, watch), who_stands_still(memory_, peers), {}, {}};
}

std::string LocalFailureWatch::why_late(const Transfer& transfer, const Watch& watch) const {
  return describe_late(transfer, memory_.names(), held_up_by(transfer, watch));
}

Status LocalFailureWatch::timed_out(const Transfer& transfer, const Watch& watch) const {
  return {ErrorCode::kTimeout,
          caused(cause_among(peers_of(transfer)),
                 describe_timeout(transfer, memory_.names(), memory_.rank(), held_up_by(transfer, watch)))};
}

}  // namespace lockstep::comm
