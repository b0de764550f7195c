#include "failure_watch.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "engine/core/error_text.h"
#include "engine/core/failure.h"
#include "engine/core/long_wait.h"
#include "engine/core/timing.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

// While a rank waits, it sends news of what the ranks of its machine have called.
constexpr auto kFirstNews = std::chrono::milliseconds(50);
constexpr auto kNewsEvery = std::chrono::milliseconds(200);
// At a timeout the others are asked what they have called. On a busy machine their answers take up to this time.
constexpr auto kAnswers = std::chrono::milliseconds(200);
// Ranks of several machines often reach their timeout together. The first of these machines breaks the group, so that
// all ranks get one text. The others wait this long for the break: longer than kAnswers by what a busy machine needs.
constexpr auto kOthersVerdict = std::chrono::seconds(1);
// A rank that is gone may have sent messages that are still on their way.
constexpr auto kLateMessages = std::chrono::milliseconds(20);

}  // namespace

Status FailureWatch::check(const Transfer* transfer, bool expired, Watch& watch) {
  const auto now = Clock::now();
  look(watch);
  if (now - watch.progressed >= kFirstNews && now - last_news_ >= kNewsEvery) {
    last_news_ = now;
    messages_.send_news(/*conditions=*/false);
    context_.transport.look_for_cut_links();
  }
  LOCKSTEP_RETURN_IF_ERROR(check_deaths(transfer, now - watch.progressed));
  watch.warns = watch.warns || loses_patience(watch);
  if (!expired && watch.warns && has_asked(watch.asked_to_warn, /*gives_up=*/false)) {
    watch.warns = false;
    watch.warning = warning(transfer, watch);
  }
  if (!expired || !has_asked(watch.asked_to_end, /*gives_up=*/true)) return {};
  if (now - watch.asked_to_end < kOthersVerdict && earlier_machine_gives_up()) return {};
  if (transfer != nullptr) return timed_out(*transfer, watch);
  const HierarchicalOperation* const late = steps_.oldest();
  return late == nullptr ? Status(ErrorCode::kTimeout, "timed out") : timed_out(*late, watch);
}

Status FailureWatch::check_deaths(const Transfer* transfer, Clock::duration stuck) {
  const bool stands = transfer == nullptr && local_operation_is_stuck();
  const bool has_begun = transfer != nullptr || steps_.messages() != nullptr;
  if ((stuck < kLateMessages && !stands) || !has_begun) return {};
  for (const int rank : suspects(transfer, stuck, stands)) {
    if (!peers_.is_gone(rank)) continue;
    return loss_of(rank, transfer != nullptr ? describe(*transfer, context_.names) + describe_place(transfer->place)
                                             : steps_.oldest()->describe(context_));
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
                  member.host, peers_.how_gone(rank), during, steps_.last_call(rank), context_.me(),
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

bool FailureWatch::has_asked(Watch::Time& asked, bool gives_up) {
  const auto now = Clock::now();
  if (asked == Watch::Time()) {
    asked = now;
    messages_.ask(gives_up);
  }
  return now - asked >= kAnswers;
}

bool FailureWatch::earlier_machine_gives_up() const {
  for (int machine = 0; machine < context_.machine(); ++machine) {
    for (const int rank : context_.topology.ranks(machine)) {
      if (board_.gives_up(rank, kOthersVerdict)) return true;
    }
  }
  return false;
}

void FailureWatch::look(Watch& watch) const {
  const auto now = Clock::now();
  if (const std::uint64_t mark = steps_.mark(); mark != watch.progress) {
    watch.progress = mark;
    watch.moved = now;
  }
  watch.last_calls.resize(context_.size());
  for (int rank = 0; rank < context_.size(); ++rank) {
    const std::uint64_t call = board_.latest(rank);
    const bool over = sequence_of(call) <= steps_.last_met();
    Watch::LastCall& last = watch.last_calls[rank];
    if (last.call != call || last.over != over || last.since == Watch::Time()) last = {call, over, now};
  }
}

AbsentRank FailureWatch::where_absent(int rank, std::uint64_t sequence, const Watch& watch) const {
  AbsentRank absent;
  absent.rank = rank;
  absent.host = context_.topology.member(rank).host;
  absent.last_call = steps_.last_call(rank);
  const std::uint64_t called = sequence_of(board_.latest(rank));
  if (sequence > called) absent.behind = sequence - called;
  absent.waits_for = peers_.waits_for(rank);
  if (!watch.last_calls.empty() && watch.last_calls[rank].over)
    absent.idle = whole_seconds_since(watch.last_calls[rank].since);
  absent.condition = peers_.why_still(rank);
  return absent;
}

std::vector<std::string> FailureWatch::where_absent(const std::vector<int>& ranks, std::uint64_t sequence,
                                                    const Watch& watch) const {
  return describe_absent(ranks, context_.names.ranks, [&](int rank) { return where_absent(rank, sequence, watch); });
}

std::vector<int> FailureWatch::peers_of(const Transfer& transfer) const {
  if (transfer.peer != kAnySource) return {transfer.peer};
  std::vector<int> ranks;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (rank != context_.rank) ranks.push_back(rank);
  }
  return ranks;
}

HeldUpBy FailureWatch::held_up_by(const Transfer& transfer, const Watch& watch) const {
  HeldUpBy ranks;
  const std::vector<int> peers = peers_of(transfer);
  ranks.absent = where_absent(peers, 0, watch);
  ranks.still = peers_.who_stands_still(peers);
  return ranks;
}

std::vector<int> FailureWatch::never_called(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (rank != context_.rank && !board_.has_called(rank, sequence)) ranks.push_back(rank);
  }
  return ranks;
}

HeldUpBy FailureWatch::held_up_by(const HierarchicalOperation& operation, const Watch& watch) const {
  HeldUpBy ranks;
  const std::vector<int> missing = never_called(operation.sequence);
  ranks.absent = where_absent(missing, operation.sequence, watch);
  ranks.still = peers_.who_stands_still(missing);
  const std::vector<int> awaited = steps_.awaited();
  const std::string who =
      awaited.empty() ? "somebody" : ranks_with_hosts(context_.topology, context_.names.ranks, awaited);
  // These ranks have answered and are not stopped, else they would stand still: they may wait for others themselves.
  ranks.inside = still_moves(watch, watch.moved) ? kMovesInside
                                                 : fmt::format("but {} stopped inside it, or a rank that {} for", who,
                                                               awaited.size() > 1 ? "these wait" : "it waits");
  std::map<int, std::string> places{{context_.rank, operation.call.place.describe()}};
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (sequence_of(board_.latest(rank)) != operation.sequence) continue;
    if (const auto place = board_.place(rank)) places[rank] = place->describe();
  }
  ranks.callers = describe_callers(places, context_.names.ranks) + steps_.describe_progress();
  return ranks;
}

std::string FailureWatch::warning(const Transfer* transfer, const Watch& watch) const {
  const GroupNames& names = context_.names;
  if (transfer != nullptr) {
    return warning_of_wait(describe_of(*transfer, names, context_.rank),
                           describe_late(*transfer, names, held_up_by(*transfer, watch)));
  }
  const HierarchicalOperation* const late = steps_.oldest();
  if (late == nullptr) return {};
  return warning_of_wait(late->describe(context_), describe(held_up_by(*late, watch), names.ranks));
}

std::string FailureWatch::cause_among(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (std::string cause = peers_.known_cause(rank); !cause.empty()) return cause;
  }
  return {};
}

Status FailureWatch::timed_out(const Transfer& transfer, const Watch& watch) const {
  const std::string text = describe_timeout(transfer, context_.names, context_.rank, held_up_by(transfer, watch));
  return {ErrorCode::kTimeout, caused(cause_among(peers_of(transfer)), text)};
}

Status FailureWatch::timed_out(const HierarchicalOperation& operation, const Watch& watch) const {
  const std::string text =
      describe_timeout(operation.describe(context_), context_.me(), held_up_by(operation, watch), context_.names.ranks);
  return {ErrorCode::kTimeout, caused(cause_among(never_called(operation.sequence)), text)};
}

}  // namespace lockstep::comm
