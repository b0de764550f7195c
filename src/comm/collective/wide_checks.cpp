// What the ranks of a group that spans machines tell one another of failures, and why a wait can no longer succeed, in
// words that name the rank, its machine, the operation and its number.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "farewell.h"
#include "wide_group.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

// News of what the ranks of this machine have called go out while a rank waits.
constexpr auto kFirstNews = std::chrono::milliseconds(50);
constexpr auto kNewsEvery = std::chrono::milliseconds(200);
// When the time is over, the others are asked what they have called: so long do their answers take on a busy machine.
constexpr auto kAnswers = std::chrono::milliseconds(200);
// A rank that is gone may have sent, or be about to finish, what is still on its way.
constexpr auto kLastWords = std::chrono::milliseconds(20);
constexpr auto kDeadTicket = std::chrono::milliseconds(500);
constexpr auto kTellFor = std::chrono::milliseconds(100);
constexpr std::size_t kTextBytes = 2048;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

std::string WideGroup::describe(const WideOperation& operation) const {
  return fmt::format("{} #{} of group '{}'", to_string(operation.request.kind), operation.sequence, name_);
}

std::string WideGroup::describe(const Transfer& transfer) const {
  return fmt::format(
      "{} {} {} with tag {} in group '{}'", transfer.is_send ? "send" : "recv", transfer.is_send ? "to" : "from",
      transfer.peer == kAnySource ? "any rank" : fmt::format("rank {}", transfer.peer), transfer.tag, name_);
}

// The latest that any rank of this machine knows.
std::uint64_t WideGroup::call_of(int rank) const {
  std::uint64_t call = 0;
  for (const Board board : boards_) call = std::max(call, board[rank].load(std::memory_order_relaxed));
  return call;
}

void WideGroup::note_call(int rank, std::uint64_t call) const {
  std::atomic<std::uint64_t>& place = boards_[layout_.index_of(rank_)][rank];
  if (place.load(std::memory_order_relaxed) < call) place.store(call, std::memory_order_relaxed);
}

bool WideGroup::on_letter(const Letter& letter) {
  WideLetter header;
  // Strangers can reach the port; what does not know the group's token is none of ours.
  if (letter.header.size() != token_.size() + sizeof header || !letter.header.starts_with(token_)) return false;
  std::memcpy(&header, letter.header.data() + token_.size(), sizeof header);
  if (header.source < 0 || header.source >= world_size() || mail_ == nullptr) return false;
  if (header.type == WideLetter::Type::kMessage) {
    mail_->arrived(header, letter);
    return true;
  }
  if (letter.data == nullptr && letter.bytes > 0) return false;
  const std::string_view text(static_cast<const char*>(letter.data), letter.bytes);
  switch (header.type) {
    case WideLetter::Type::kHello: greeted_[header.source] = true; break;
    case WideLetter::Type::kGoodbye: left_[header.source] = true; break;
    case WideLetter::Type::kAsk: asked_ = true; break;
    case WideLetter::Type::kAbort: told_break_ = {static_cast<ErrorCode>(header.tag), std::string(text)}; break;
    case WideLetter::Type::kNews: {
      const std::vector<int>& ranks = layout_.ranks(layout_.machine_of(header.source));
      for (std::size_t i = 0; i < ranks.size() && (i + 1) * sizeof(std::uint64_t) <= text.size(); ++i) {
        std::uint64_t call = 0;
        std::memcpy(&call, text.data() + i * sizeof call, sizeof call);
        note_call(ranks[i], call);
      }
      break;
    }
    case WideLetter::Type::kMessage: break;
  }
  return false;
}

void WideGroup::tell_neighbours(WideLetter::Type type, std::int64_t value, const std::string& text) {
  WideLetter header;
  header.type = type;
  header.source = rank_;
  header.tag = value;
  const std::string head = token_ + std::string(reinterpret_cast<const char*>(&header), sizeof header);
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!layout_.are_neighbours(rank_, rank) || left_[rank] || transport_->is_lost(rank)) continue;
    auto& [parcel, kept] = told_.emplace_back(Parcel(), text);
    transport_->post(rank, head, kept.data(), kept.size(), parcel);
  }
}

void WideGroup::send_news() {
  std::string calls;
  for (const int rank : layout_.ranks(layout_.machine_of(rank_))) {
    const std::uint64_t call = call_of(rank);
    calls.append(reinterpret_cast<const char*>(&call), sizeof call);
  }
  tell_neighbours(WideLetter::Type::kNews, 0, calls);
}

bool WideGroup::is_gone(int rank) const {
  if (rank == rank_) return false;
  if (layout_.machine_of(rank) != layout_.machine_of(rank_)) return left_[rank] || transport_->is_lost(rank);
  const Waiting& waiting = before_->waiting();
  return waiting.process_gone(layout_.index_of(rank)) || waiting.left(layout_.index_of(rank));
}

// Ranks without which the oldest operation, or this transfer, cannot go on.
std::vector<int> WideGroup::awaited(const Transfer* transfer) const {
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
  if (front.stage == Stage::kExchange) front.step->flows().awaited(ranks);
  if (front.local != nullptr && front.local->collective->missing() >= 0)
    ranks.push_back(layout_.rank_at(layout_.machine_of(rank_), front.local->collective->missing()));
  return ranks;
}

Status WideGroup::check(const Transfer* transfer, bool expired, Clock::time_point progressed) {
  LOCKSTEP_RETURN_IF_ERROR(check_local_groups());
  const auto now = Clock::now();
  if (now - progressed >= kFirstNews && now - last_news_ >= kNewsEvery) {
    last_news_ = now;
    send_news();
  }
  LOCKSTEP_RETURN_IF_ERROR(check_deaths(transfer, now - progressed));
  if (!expired || (transfer == nullptr && !has_asked())) return {};
  return timed_out(transfer);
}

// Whether what the others have called by now is known, as far as they answer. With a short timeout no news have come.
bool WideGroup::has_asked() {
  if (active_.empty() && queue_.empty()) return true;
  const std::uint64_t late = (active_.empty() ? *queue_.front() : *active_.front().operation).sequence;
  const auto now = Clock::now();
  if (asked_about_ != late) {
    asked_about_ = late;
    asked_at_ = now;
    send_news();
    tell_neighbours(WideLetter::Type::kAsk, 0, "");
  }
  return now - asked_at_ >= kAnswers;
}

// Another rank of this machine has broken the group.
Status WideGroup::check_local_groups() {
  if (!break_status_.ok()) return break_status_;
  for (const auto& local : {before_, after_}) {
    const Status status = local->health();
    if (!status.ok()) return break_group(status.code(), status.message());
  }
  return {};
}

std::string WideGroup::loss_of(int rank, const std::string& during) const {
  const bool local = layout_.machine_of(rank) == layout_.machine_of(rank_);
  const bool left = local ? before_->waiting().left(layout_.index_of(rank)) : left_[rank];
  const char* how = left    ? "left the group"
                    : local ? before_->memory().peer(layout_.index_of(rank)).how_gone()
                            : "died, or the connection to it broke,";
  const std::uint64_t call = call_of(rank);
  const std::string last =
      call == 0 ? "no call yet" : fmt::format("last call {} #{}", to_string(static_cast<Kind>(call & 0xff)), call >> 8);
  return fmt::format("rank {} (pid {} on {}) {} in {} ({}); first seen by rank {}", rank, layout_.member(rank).pid,
                     layout_.member(rank).host, how, during, last, rank_);
}

Status WideGroup::check_deaths(const Transfer* transfer, Clock::duration stuck) {
  if (stuck < kLastWords || (transfer == nullptr && active_.empty())) return {};
  std::vector<int> suspects = awaited(transfer);
  if (transfer == nullptr && stuck >= kDeadTicket) {
    for (int rank = 0; rank < world_size(); ++rank) suspects.push_back(rank);
  }
  for (const int rank : suspects) {
    if (!is_gone(rank)) continue;
    return break_group(ErrorCode::kPeerFailed,
                       loss_of(rank, transfer != nullptr ? describe(*transfer) : describe(*active_.front().operation)));
  }
  if (transfer != nullptr || active_.front().step->flows().status().ok()) return {};
  return break_group(ErrorCode::kPeerFailed,
                     fmt::format("{} failed on rank {}: {}", describe(*active_.front().operation), rank_,
                                 active_.front().step->flows().status().message()));
}

std::vector<int> WideGroup::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank != rank_ && call_of(rank) >> 8 < sequence) ranks.push_back(rank);
  }
  return ranks;
}

Status WideGroup::timed_out(const Transfer* transfer) {
  if (transfer != nullptr) {
    return break_group(ErrorCode::kTimeout,
                       fmt::format("{} timed out on rank {}: no matching {} came", describe(*transfer), rank_,
                                   transfer->is_send ? "recv" : "send"));
  }
  if (active_.empty() && queue_.empty()) return {ErrorCode::kTimeout, "timed out"};
  const WideOperation& operation = active_.empty() ? *queue_.front() : *active_.front().operation;
  std::vector<std::string> missing;
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::uint64_t call = call_of(rank);
    if (rank == rank_ || call >> 8 >= operation.sequence) continue;
    missing.push_back(
        fmt::format("{} (on {}, {})", rank, layout_.member(rank).host,
                    call == 0 ? "no call known"
                              : fmt::format("last call {} #{}", to_string(static_cast<Kind>(call & 0xff)), call >> 8)));
  }
  const std::string silent = ranks_with_hosts(layout_, awaited(nullptr));
  const std::string why = !missing.empty()
                              ? fmt::format("rank(s) {} never called it, or cannot be reached", join(missing))
                              : fmt::format(
                                    "every rank called it, but {} stopped in the middle (frozen, or cut off from rank "
                                    "{})",
                                    silent.empty() ? "somebody" : "rank(s) " + silent, rank_);
  return break_group(ErrorCode::kTimeout, fmt::format("{} timed out on rank {}: {}", describe(operation), rank_, why));
}

Status WideGroup::break_group(ErrorCode code, const std::string& reason) {
  if (!break_status_.ok()) return break_status_;
  before_->waiting().abort(code, reason);
  after_->waiting().abort(code, reason);
  // If another rank of the machine was first, its reason counts.
  const Status local = before_->health();
  break_status_ = local;
  tell_neighbours(WideLetter::Type::kAbort, static_cast<std::int64_t>(local.code()),
                  local.message().substr(0, kTextBytes));
  transport_->close(/*gently=*/true, Farewell(kTellFor).left());
  for (Active& active : active_) {
    if (active.local != nullptr)
      (void)active.local->group->wait(*active.local, Deadline::after(std::chrono::seconds(0)));
  }
  std::vector<std::shared_ptr<WideOperation>> operations(queue_.begin(), queue_.end());
  for (const Active& active : active_) operations.push_back(active.operation);
  for (const auto& operation : operations) {
    if (!operation->over.load()) end(*operation, break_status_);
  }
  active_.clear();
  queue_.clear();
  for (const auto& state : transfers_) {
    mail_->withdraw(state->transfer);
    state->status = break_status_;
    state->over.store(true, std::memory_order_release);
  }
  transfers_.clear();
  told_.clear();
  set_busy(false);
  return break_status_;
}

}  // namespace lockstep::comm
