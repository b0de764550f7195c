#include "failure_watch.h"

#include <fmt/format.h>

#include <utility>

#include "engine/core/error_text.h"
#include "engine/core/failure.h"
#include "engine/core/timing.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

// While a rank waits, it sends news of what the ranks of its machine have called.
constexpr auto kFirstNews = std::chrono::milliseconds(50);
constexpr auto kNewsEvery = std::chrono::milliseconds(200);
// At a timeout the others are asked what they have called. On a busy machine their answers take up to this time.
constexpr auto kAnswers = std::chrono::milliseconds(200);
// A rank that is gone may have sent messages that are still on their way.
constexpr auto kLateMessages = std::chrono::milliseconds(20);
constexpr std::uint64_t kMessages = ~std::uint64_t{0};  // the value of asked_about_ for point-to-point messages

}  // namespace

Status FailureWatch::check(const Transfer* transfer, bool expired, Clock::time_point progressed) {
  const auto now = Clock::now();
  if (now - progressed >= kFirstNews && now - last_news_ >= kNewsEvery) {
    last_news_ = now;
    messages_.send_news(/*conditions=*/false);
  }
  LOCKSTEP_RETURN_IF_ERROR(check_deaths(transfer, now - progressed));
  if (!expired) return {};
  const HierarchicalOperation* const late = transfer == nullptr ? steps_.oldest() : nullptr;
  if (!has_asked(late == nullptr ? kMessages : late->sequence)) return {};
  if (transfer != nullptr) return timed_out(*transfer);
  return late == nullptr ? Status(ErrorCode::kTimeout, "timed out") : timed_out(*late);
}

Status FailureWatch::check_deaths(const Transfer* transfer, Clock::duration stuck) {
  const bool stands = transfer == nullptr && local_operation_is_stuck();
  const bool has_begun = transfer != nullptr || steps_.messages() != nullptr;
  if ((stuck < kLateMessages && !stands) || !has_begun) return {};
  for (const int rank : suspects(transfer, stuck, stands)) {
    if (!peers_.is_gone(rank)) continue;
    return loss_of(rank,
                   transfer != nullptr ? describe(*transfer, context_.names) : steps_.oldest()->describe(context_));
  }
  return transfer != nullptr ? Status() : check_messages();
}

// The ranks whose end would explain that nothing moves. `stands`: a local operation is stuck.
std::vector<int> FailureWatch::suspects(const Transfer* transfer, Clock::duration stuck, bool stands) const {
  std::vector<int> ranks = awaited(transfer);
  const bool all = transfer == nullptr && stuck >= kDeadTicket;
  for (int rank = 0; stands && rank < context_.size(); ++rank) {
    // A rank that left had done its part. Ranks of other machines count too: a rank of this machine may wait for one.
    if (!peers_.has_left(rank)) ranks.push_back(rank);
  }
  for (int rank = 0; all && rank < context_.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

// Whether a tagged message of the oldest step has failed.
Status FailureWatch::check_messages() const {
  const StepMessages& messages = *steps_.messages();
  const Status& why = messages.status();
  if (why.ok()) return {};
  const std::string what = steps_.oldest()->describe(context_);
  if (why.code() == ErrorCode::kPeerFailed) return loss_of(messages.failed_with(), what);
  return {why.code(), fmt::format("{} failed on {}: {}", what, context_.me(), why.message())};
}

Status FailureWatch::loss_of(int rank, const std::string& during) const {
  const Member& member = context_.topology.member(rank);
  const std::string cause = peers_.known_cause(rank);
  const std::string what =
      fmt::format("{} (pid {} on {}) {} in {} ({}); first seen by {}{}", context_.names.ranks.name(rank), member.pid,
                  member.host, peers_.how_gone(rank), during, board_.describe(rank), context_.me(),
                  peers_.has_left(rank) && cause.empty() ? kLeftEarly : "");
  return loss(cause, what);
}

// Whether an operation among the ranks of this machine has made no progress for so long that a dead rank may hold one
// of its tickets. Messages from other machines, such as news, do not count as its progress.
bool FailureWatch::local_operation_is_stuck() {
  const auto at = steps_.local_position();
  if (!at) return false;
  const auto now = Clock::now();
  if (*at != local_at_) {
    local_at_ = *at;
    local_since_ = now;
  }
  return now - local_since_ >= kDeadTicket;
}

// The ranks that the oldest collective, or this transfer, waits for.
std::vector<int> FailureWatch::awaited(const Transfer* transfer) const {
  if (transfer == nullptr) return steps_.awaited();
  if (transfer->peer != kAnySource) return {transfer->peer};
  std::vector<int> ranks;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (rank == context_.rank) continue;
    if (!peers_.is_gone(rank)) return {};  // it may still send
    ranks.push_back(rank);
  }
  return ranks;
}

bool FailureWatch::has_asked(std::uint64_t late) {
  const auto now = Clock::now();
  if (asked_about_ != late) {
    asked_about_ = late;
    asked_at_ = now;
    messages_.ask();
  }
  return now - asked_at_ >= kAnswers;
}

Status FailureWatch::timed_out(const Transfer& transfer) const {
  std::string cause;
  for (int rank = 0; rank < context_.size() && cause.empty(); ++rank) {
    if (rank != context_.rank && (transfer.peer == kAnySource || transfer.peer == rank))
      cause = peers_.known_cause(rank);
  }
  return {ErrorCode::kTimeout,
          caused(cause, describe_timeout(transfer, context_.names, context_.rank, peers_.who_stands_still({})))};
}

Status FailureWatch::timed_out(const HierarchicalOperation& operation) const {
  std::vector<int> missing;
  std::vector<std::string> texts;
  std::string cause;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (rank == context_.rank || board_.has_called(rank, operation.sequence)) continue;
    missing.push_back(rank);
    const std::string still = peers_.why_still(rank);
    texts.push_back(fmt::format("{} (on {}, {}{}{})", context_.names.ranks.number(rank),
                                context_.topology.member(rank).host, board_.describe(rank), still.empty() ? "" : ", ",
                                still));
    if (cause.empty()) cause = peers_.known_cause(rank);
  }
  const std::vector<int> silent = steps_.awaited();
  const std::string who =
      silent.empty() ? "somebody" : ranks_with_hosts(context_.topology, context_.names.ranks, silent);
  const HeldUpBy ranks{std::move(texts), peers_.who_stands_still(missing),
                       fmt::format("{} stopped inside it (frozen, or cut off from {})", who, context_.me())};
  return {ErrorCode::kTimeout,
          caused(cause, describe_timeout(operation.describe(context_), context_.me(), ranks, context_.names.ranks))};
}

}  // namespace lockstep::comm
