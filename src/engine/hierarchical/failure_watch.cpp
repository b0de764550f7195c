// What the ranks of a group that spans machines tell one another of failures. Also finds out why a wait can no longer
// succeed: the error names the rank, its machine, the operation and its sequence number.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fault_point.h"
#include "engine/core/drain_timeout.h"
#include "engine/core/error_text.h"
#include "engine/core/process_state.h"
#include "engine/core/timing.h"
#include "hierarchical_group.h"

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
constexpr auto kTellFor = std::chrono::milliseconds(100);
constexpr std::size_t kTextBytes = 2048;
constexpr std::uint64_t kMessages = ~std::uint64_t{0};  // the value of asked_about_ for point-to-point messages

}  // namespace

std::string HierarchicalGroup::describe(const HierarchicalOperation& operation) const {
  return comm::describe(operation.request.kind, operation.sequence, name_);
}

std::string HierarchicalGroup::last_call(int rank) const {
  const std::uint64_t call = call_of(rank);
  if (call == 0) return "no call known";
  return fmt::format("last call {} #{}", to_string(kind_of(call)), sequence_of(call));
}

// The rank's condition as its machine knows it.
std::string HierarchicalGroup::condition(int rank) const {
  if (topology_.machine_of(rank) != topology_.machine_of(rank_)) return conditions_[rank];
  return condition_of(*before_->memory().peer(topology_.index_of(rank)).process);
}

std::string HierarchicalGroup::known_cause(int rank) const {
  if (topology_.machine_of(rank) != topology_.machine_of(rank_)) return known_causes_[rank];
  return before_->waiting().known_cause(topology_.index_of(rank));
}

Failure HierarchicalGroup::failure() const {
  Failure failure = before_->failure();  // other groups see a death on another machine by their own connections
  failure.status = health();
  return failure;
}

void HierarchicalGroup::hear(const Failure& failure) {
  MutexLock lock(mutex_);
  if (closed_ || !break_status_.ok()) return;
  before_->hear(failure);
  after_->hear(failure);
  if (!check_local_groups().ok()) return;
  tell_neighbours(ActiveMessageHeader::Type::kCause, 0, known_cause(rank_));
  transport_->progress();
}

// The latest call of `rank` that any rank of this machine knows.
std::uint64_t HierarchicalGroup::call_of(int rank) const {
  std::uint64_t call = 0;
  for (const Board board : boards_) call = std::max(call, board[rank].load(std::memory_order_relaxed));
  return call;
}

void HierarchicalGroup::note_call(int rank, std::uint64_t call) const {
  std::atomic<std::uint64_t>& place = boards_[topology_.index_of(rank_)][rank];
  if (place.load(std::memory_order_relaxed) < call) place.store(call, std::memory_order_relaxed);
}

bool HierarchicalGroup::on_active_message(const ActiveMessage& message) {
  ActiveMessageHeader header;
  // Other programs can reach the port. A message without the group's token is not from a member.
  if (message.header.size() != token_.size() + sizeof header || !message.header.starts_with(token_)) return false;
  std::memcpy(&header, message.header.data() + token_.size(), sizeof header);
  if (header.source < 0 || header.source >= world_size() || mailbox_ == nullptr) return false;
  if (header.type == ActiveMessageHeader::Type::kMessage) {
    mailbox_->arrived(header, message);
    return true;
  }
  if (message.data == nullptr && message.bytes > 0) return false;
  const std::string_view text(static_cast<const char*>(message.data), message.bytes);
  switch (header.type) {
    case ActiveMessageHeader::Type::kHello: greeted_[header.source] = true; break;
    case ActiveMessageHeader::Type::kGoodbye: left_[header.source] = true; [[fallthrough]];
    case ActiveMessageHeader::Type::kCause:
      if (known_causes_[header.source].empty()) known_causes_[header.source] = text;
      break;
    case ActiveMessageHeader::Type::kAsk: asked_ = true; break;
    case ActiveMessageHeader::Type::kAbort:
      reported_break_ = {static_cast<ErrorCode>(header.tag), std::string(text)};
      break;
    case ActiveMessageHeader::Type::kNews: take_news(header.source, text); break;
    case ActiveMessageHeader::Type::kMessage: break;
  }
  return false;
}

void HierarchicalGroup::tell_neighbours(ActiveMessageHeader::Type type, std::int64_t value, const std::string& text) {
  LOCKSTEP_FAULT_POINT("hierarchical: message");
  ActiveMessageHeader header;
  header.type = type;
  header.source = rank_;
  header.tag = value;
  const std::string head = token_ + std::string(reinterpret_cast<const char*>(&header), sizeof header);
  for (int rank = 0; rank < world_size(); ++rank) {
    // Every connected rank will see the connection end, and must know why.
    const bool ends = type == ActiveMessageHeader::Type::kAbort || type == ActiveMessageHeader::Type::kGoodbye;
    const bool to = topology_.are_neighbours(rank_, rank) || (ends && transport_->is_connected(rank));
    if (!to || left_[rank] || transport_->is_lost(rank)) continue;
    auto& [request, kept] = outgoing_.emplace_back(TransportRequest(), text);
    transport_->post(rank, head, kept.data(), kept.size(), request);
  }
}

// For each rank of this machine: its last call and, if another rank asked at a timeout, its condition.
void HierarchicalGroup::send_news(bool conditions) {
  std::string news;
  for (const int rank : topology_.ranks(topology_.machine_of(rank_))) {
    const std::uint64_t call = call_of(rank);
    news.append(reinterpret_cast<const char*>(&call), sizeof call);
    if (conditions) news += condition(rank);
    news += '\0';
  }
  tell_neighbours(ActiveMessageHeader::Type::kNews, 0, news);
}

void HierarchicalGroup::take_news(int source, std::string_view news) {
  for (const int rank : topology_.ranks(topology_.machine_of(source))) {
    std::uint64_t call = 0;
    const std::size_t end = news.find('\0', std::min(sizeof call, news.size()));
    if (end == std::string_view::npos) return;
    std::memcpy(&call, news.data(), sizeof call);
    note_call(rank, call);
    answered_[source] = true;
    conditions_[rank] = news.substr(sizeof call, end - sizeof call);
    news.remove_prefix(end + 1);
  }
}

bool HierarchicalGroup::has_left(int rank) const {
  const bool local = topology_.machine_of(rank) == topology_.machine_of(rank_);
  return local ? before_->waiting().left(topology_.index_of(rank)) : left_[rank];
}

bool HierarchicalGroup::is_gone(int rank) const {
  if (rank == rank_) return false;
  if (topology_.machine_of(rank) != topology_.machine_of(rank_)) return left_[rank] || transport_->is_lost(rank);
  const Waiting& waiting = before_->waiting();
  return waiting.process_gone(topology_.index_of(rank)) || waiting.left(topology_.index_of(rank));
}

// The ranks that the oldest operation, or this transfer, waits for.
std::vector<int> HierarchicalGroup::awaited(const Transfer* transfer) const {
  std::vector<int> ranks;
  if (transfer != nullptr) {
    if (transfer->peer != kAnySource) return {transfer->peer};
    for (int rank = 0; rank < world_size(); ++rank) {
      if (rank == rank_) continue;
      if (!is_gone(rank)) return {};  // it may still send
      ranks.push_back(rank);
    }
    return ranks;
  }
  if (active_.empty()) return ranks;
  const Active& front = active_.front();
  if (front.stage == Stage::kExchange) front.step->messages().awaited(ranks);
  if (front.local != nullptr && front.local->collective->missing() >= 0)
    ranks.push_back(topology_.rank_at(topology_.machine_of(rank_), front.local->collective->missing()));
  return ranks;
}

Status HierarchicalGroup::check(const Transfer* transfer, bool expired, Clock::time_point progressed) {
  LOCKSTEP_RETURN_IF_ERROR(check_local_groups());
  const auto now = Clock::now();
  if (now - progressed >= kFirstNews && now - last_news_ >= kNewsEvery) {
    last_news_ = now;
    send_news(/*conditions=*/false);
  }
  LOCKSTEP_RETURN_IF_ERROR(check_deaths(transfer, now - progressed));
  if (!expired) return {};
  const bool idle = active_.empty() && queue_.empty();
  const std::uint64_t late = transfer != nullptr || idle
                                 ? kMessages
                                 : (active_.empty() ? *queue_.front() : *active_.front().operation).sequence;
  return has_asked(late) ? timed_out(transfer) : Status();
}

bool HierarchicalGroup::has_asked(std::uint64_t late) {
  const auto now = Clock::now();
  if (asked_about_ != late) {
    asked_about_ = late;
    asked_at_ = now;
    answered_.assign(answered_.size(), false);
    send_news(/*conditions=*/false);
    tell_neighbours(ActiveMessageHeader::Type::kAsk, 0, "");
  }
  return now - asked_at_ >= kAnswers;
}

// Why a rank may stand still; empty: it runs, as far as is known.
std::string HierarchicalGroup::why_still(int rank) const {
  const std::string known = condition(rank);
  const bool silent = topology_.are_neighbours(rank_, rank) && !answered_[rank];
  return known.empty() && silent ? "did not answer" : known;
}

std::vector<std::string> HierarchicalGroup::who_stands_still(const std::vector<int>& named) const {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == rank_ || std::find(named.begin(), named.end(), rank) != named.end()) continue;
    const std::string why = why_still(rank);
    if (!why.empty()) {
      ranks.push_back(fmt::format("{} (on {}, {})", roster_.number(rank), topology_.member(rank).host, why));
    }
  }
  return ranks;
}

// Finds out whether another rank of this machine has broken the group.
Status HierarchicalGroup::check_local_groups() {
  if (!break_status_.ok()) return break_status_;
  for (const auto& local : {before_, after_}) {
    const Status status = local->health();
    if (!status.ok()) return break_group(status.code(), status.message());
  }
  return {};
}

std::string HierarchicalGroup::loss_of(int rank, const std::string& during) const {
  const bool local = topology_.machine_of(rank) == topology_.machine_of(rank_);
  const char* how = has_left(rank) ? "left the group"
                    : local        ? before_->memory().peer(topology_.index_of(rank)).how_gone()
                                   : "died, or the connection to it broke,";
  return caused(known_cause(rank), fmt::format("{} (pid {} on {}) {} in {} ({}); first seen by {}", roster_.name(rank),
                                               topology_.member(rank).pid, topology_.member(rank).host, how, during,
                                               last_call(rank), me()));
}

// Whether an operation among the ranks of this machine has made no progress for so long that a dead rank may hold one
// of its tickets. Messages from other machines, such as news, do not count as its progress.
bool HierarchicalGroup::local_operation_is_stuck() {
  if (active_.empty() || active_.front().local == nullptr) return false;
  const Active& front = active_.front();
  const std::array at{static_cast<std::uint64_t>(front.stage), front.local->collective->sequence(),
                      front.local->collective->tickets_done()};
  const auto now = Clock::now();
  if (at != local_at_) {
    local_at_ = at;
    local_since_ = now;
  }
  return now - local_since_ >= kDeadTicket;
}

Status HierarchicalGroup::check_deaths(const Transfer* transfer, Clock::duration stuck) {
  const bool stands = transfer == nullptr && local_operation_is_stuck();
  if ((stuck < kLateMessages && !stands) || (transfer == nullptr && active_.empty())) return {};
  std::vector<int> suspects = awaited(transfer);
  // A rank that left had done its part. Ranks of other machines count too: a rank of this machine may wait for one.
  for (int rank = 0; stands && rank < world_size(); ++rank) {
    if (!has_left(rank)) suspects.push_back(rank);
  }
  if (transfer == nullptr && stuck >= kDeadTicket) {
    for (int rank = 0; rank < world_size(); ++rank) suspects.push_back(rank);
  }
  for (const int rank : suspects) {
    if (!is_gone(rank)) continue;
    return break_group(
        ErrorCode::kPeerFailed,
        loss_of(rank, transfer != nullptr ? comm::describe(*transfer, names()) : describe(*active_.front().operation)));
  }
  if (transfer != nullptr) return {};
  const StepMessages& messages = active_.front().step->messages();
  if (messages.status().ok()) return {};
  const std::string what = describe(*active_.front().operation);
  if (messages.status().code() == ErrorCode::kPeerFailed)
    return break_group(ErrorCode::kPeerFailed, loss_of(messages.failed_with(), what));
  return break_group(messages.status().code(),
                     fmt::format("{} failed on {}: {}", what, me(), messages.status().message()));
}

std::vector<int> HierarchicalGroup::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank != rank_ && sequence_of(call_of(rank)) < sequence) ranks.push_back(rank);
  }
  return ranks;
}

Status HierarchicalGroup::timed_out(const Transfer* transfer) {
  if (transfer != nullptr) {
    std::string cause;
    for (int rank = 0; rank < world_size() && cause.empty(); ++rank) {
      if (rank != rank_ && (transfer->peer == kAnySource || transfer->peer == rank)) cause = known_cause(rank);
    }
    return break_group(ErrorCode::kTimeout,
                       caused(cause, describe_timeout(*transfer, names(), rank_, who_stands_still({}))));
  }
  if (active_.empty() && queue_.empty()) return {ErrorCode::kTimeout, "timed out"};
  const HierarchicalOperation& operation = active_.empty() ? *queue_.front() : *active_.front().operation;
  std::vector<int> missing;
  std::vector<std::string> texts;
  std::string cause;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == rank_ || sequence_of(call_of(rank)) >= operation.sequence) continue;
    missing.push_back(rank);
    const std::string still = why_still(rank);
    texts.push_back(fmt::format("{} (on {}, {}{}{})", roster_.number(rank), topology_.member(rank).host,
                                last_call(rank), still.empty() ? "" : ", ", still));
    if (cause.empty()) cause = known_cause(rank);
  }
  const std::vector<int> silent = awaited(nullptr);
  const HeldUpBy ranks{std::move(texts), who_stands_still(missing),
                       fmt::format("{} stopped inside it (frozen, or cut off from {})",
                                   silent.empty() ? "somebody" : ranks_with_hosts(topology_, roster_, silent), me())};
  return break_group(ErrorCode::kTimeout, caused(cause, describe_timeout(describe(operation), me(), ranks, roster_)));
}

Status HierarchicalGroup::break_group(ErrorCode code, const std::string& reason) {
  if (!break_status_.ok()) return break_status_;
  before_->waiting().abort(code, reason);
  after_->waiting().abort(code, reason);
  // If another rank of the machine was first, its reason is the group's.
  const Status local = before_->health();
  break_status_ = local;
  tell_neighbours(ActiveMessageHeader::Type::kAbort, static_cast<std::int64_t>(local.code()),
                  shortened(local.message(), kTextBytes));
  transport_->close(/*gently=*/true, DrainTimeout(kTellFor).remaining());
  for (Active& active : active_) {
    if (active.local != nullptr)
      (void)local_group(active).wait(*active.local, Deadline::after(std::chrono::seconds(0)));
  }
  std::vector<std::shared_ptr<HierarchicalOperation>> operations(queue_.begin(), queue_.end());
  for (const Active& active : active_) operations.push_back(active.operation);
  for (const auto& operation : operations) {
    if (!operation->over.load()) end(*operation, break_status_);
  }
  active_.clear();
  queue_.clear();
  for (const auto& state : transfers_) {
    mailbox_->withdraw(state->transfer);
    state->status = break_status_;
    state->over.store(true, std::memory_order_release);
  }
  transfers_.clear();
  outgoing_.clear();
  set_busy(false);
  return break_status_;
}

}  // namespace lockstep::comm
