// Why a wait can no longer succeed, in words that name the rank, the operation and its number.
#include <fmt/format.h>

#include "group.h"
#include "plan.h"

namespace lockstep::comm {
namespace {

// A dead rank may hold a ticket that nobody can finish; so long without progress and it did.
constexpr auto kDeadTicket = std::chrono::milliseconds(500);

}  // namespace

std::string Communicator::Impl::describe(const Collective& collective) const {
  return fmt::format("{} #{} of group '{}'", to_string(collective.request().kind), collective.sequence(),
                     memory_.name());
}

std::string Communicator::Impl::describe(const Transfer& transfer) const {
  return fmt::format(
      "{} {} {} with tag {} in group '{}'", transfer.is_send ? "send" : "recv", transfer.is_send ? "to" : "from",
      transfer.peer == kAnySource ? "any rank" : fmt::format("rank {}", transfer.peer), transfer.tag, memory_.name());
}

std::string Communicator::Impl::last_call(int rank) const {
  const std::uint64_t current = memory_.state(rank).current.load(std::memory_order_relaxed);
  if (current == 0) return "no call yet";
  return fmt::format("last call {} #{}", to_string(static_cast<Kind>(current & 0xff)), current >> 8);
}

std::vector<int> Communicator::Impl::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    if (memory_.post(rank, sequence).state.load(std::memory_order_acquire) / 2 < sequence) ranks.push_back(rank);
  }
  return ranks;
}

std::string Communicator::Impl::behind_in_stream() const {
  const RankState& mine = memory_.state(memory_.rank());
  std::string ranks;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    const RankState& other = memory_.state(rank);
    if (other.laid_out.load() < mine.laid_out.load() || other.reduced.load() < mine.reduced.load())
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks.empty() ? "somebody" : fmt::format("rank(s) {}", ranks);
}

Status Communicator::Impl::check(const Collective& collective, bool expired, Watch& watch) {
  const auto now = std::chrono::steady_clock::now();
  if (const std::uint64_t current = collective.progress(); current != watch.progress) {
    watch.progress = current;
    watch.progressed = now;
  }
  std::string missing;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    if (rank == memory_.rank()) continue;
    // In this order: what a rank posted before it went is visible once it is seen to be gone.
    const bool gone = waiting_.process_gone(rank);
    const bool left = waiting_.left(rank);
    const bool posted =
        memory_.post(rank, collective.sequence()).state.load(std::memory_order_acquire) / 2 >= collective.sequence();
    if (!posted) missing += fmt::format("{}{} ({})", missing.empty() ? "" : ", ", rank, last_call(rank));
    if (!gone && !left) continue;
    // Who has posted and then left has done its part.
    if (posted && (left || now - watch.progressed < kDeadTicket)) continue;
    const char* how = left ? "left the group" : memory_.peer(rank).how_gone();
    waiting_.abort(ErrorCode::kPeerFailed,
                   fmt::format("rank {} (pid {}) {} {} {} ({}); first seen by rank {}", rank, memory_.peer(rank).pid,
                               how, posted ? "in" : "before", describe(collective), last_call(rank), memory_.rank()));
    return waiting_.abort_status();
  }
  if (!expired) return {};
  const std::string behind = collective.wants_stream() ? behind_in_stream() : "somebody";
  const std::string why =
      missing.empty()
          ? fmt::format("every rank called it, but {} stopped in the middle (frozen or without a core?)", behind)
          : fmt::format("rank(s) {} never called it before the timeout ran out", missing);
  waiting_.abort(ErrorCode::kTimeout,
                 fmt::format("{} timed out on rank {}: {}", describe(collective), memory_.rank(), why));
  return waiting_.abort_status();
}

Status Communicator::Impl::check(const Transfer& transfer, bool expired) {
  const std::string what = describe(transfer);
  int alive = 0;
  std::string gone_ranks;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    const bool gone = rank != memory_.rank() && (waiting_.process_gone(rank) || waiting_.left(rank));
    if (transfer.peer != kAnySource && rank != transfer.peer) continue;
    if (!gone) {
      ++alive;
    } else {
      gone_ranks += fmt::format("{}{} (pid {})", gone_ranks.empty() ? "" : ", ", rank, memory_.peer(rank).pid);
    }
  }
  const bool only_self_left = transfer.peer == kAnySource && alive == 1 && memory_.world() > 1;
  if (alive == 0 || only_self_left) {
    // It may have sent before it went.
    MutexLock lock(mutex_);
    mailbox_.pump();
    if (transfer.over) return {};
    waiting_.abort(ErrorCode::kPeerFailed, fmt::format("rank(s) {} died or left before {} of rank {} was done",
                                                       gone_ranks, what, memory_.rank()));
    return waiting_.abort_status();
  }
  if (!expired) return {};
  waiting_.abort(ErrorCode::kTimeout, fmt::format("{} timed out on rank {}: no matching {} came", what, memory_.rank(),
                                                  transfer.is_send ? "recv" : "send"));
  return waiting_.abort_status();
}

Status Communicator::Impl::check_admission(bool expired) {
  const std::uint64_t next = sequence() + 1;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    if (rank == memory_.rank() || (!waiting_.process_gone(rank) && !waiting_.left(rank))) continue;
    if (memory_.state(rank).completed.load(std::memory_order_acquire) + kRing >= next) continue;  // not in the way
    waiting_.abort(ErrorCode::kPeerFailed,
                   fmt::format("rank {} (pid {}) died or left ({}) while rank {} had {} operations under way "
                               "in group '{}'",
                               rank, memory_.peer(rank).pid, last_call(rank), memory_.rank(), kRing, memory_.name()));
    return waiting_.abort_status();
  }
  if (!expired) return {};
  waiting_.abort(ErrorCode::kTimeout, fmt::format("rank {} timed out with {} operations under way in group '{}'",
                                                  memory_.rank(), kRing, memory_.name()));
  return waiting_.abort_status();
}

}  // namespace lockstep::comm
