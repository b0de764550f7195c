// How a collective ends that cannot go on: whether a dead rank holds it up, and when the caller has its buffers back.
#include <chrono>
#include <thread>

#include "collective.h"
#include "plan.h"

namespace lockstep::comm {
namespace {

// Allows no further claims. Returns how many tickets have been claimed.
std::uint64_t close_claims(Counter& counter, std::uint64_t sequence) {
  std::uint64_t word = counter.word.load(std::memory_order_acquire);
  for (;;) {
    if ((word >> kTicketBits) > sequence) return 0;  // a later operation uses the counter
    const std::uint64_t count = (word >> kTicketBits) == sequence ? (word & kTicketMask) : 0;
    if (counter.word.compare_exchange_weak(word, (sequence << kTicketBits) | count | kClosed,
                                           std::memory_order_acq_rel))
      return count & ~kClosed;
  }
}

}  // namespace

bool Collective::somebody_works() const {
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const bool is_inside = memory_.done(rank, sequence_).inside.load(std::memory_order_acquire) == sequence_;
    if (is_inside && !waiting_.process_gone(rank)) return true;
  }
  return false;
}

bool Collective::is_held_up_by(int rank) const {
  const auto state_of = [&](int of) { return memory_.post(of, sequence_).state.load(std::memory_order_acquire); };
  bool all_ready = true;
  for (int other = 0; other < memory_.size(); ++other) {
    if (state_of(other) < 2 * sequence_) return false;
    all_ready = all_ready && state_of(other) % 2 == 1;
  }
  const Plan plan(memory_, sequence_);
  if (!plan.agreement().ok() || plan.inlined()) return false;
  if (!all_ready) return state_of(rank) % 2 == 0;
  std::uint64_t tickets = 0;
  std::uint64_t claimed = 0;
  for (int owner = 0; owner < memory_.size(); ++owner) {
    const std::uint64_t count = count_of(memory_.claim(owner, sequence_), sequence_) & ~kClosed;
    if (owner == rank && !plan.shared(owner) && count < plan.tickets(owner)) return true;
    tickets += plan.tickets(owner);
    claimed += count;
  }
  if (claimed < tickets || memory_.done(rank, sequence_).inside.load(std::memory_order_acquire) != sequence_)
    return false;
  return !somebody_works() && tickets_done() < tickets;  // in this order: who works has not counted its tickets yet
}

void Collective::abandon() {
  if (phase_ == Phase::kOver) return;
  const auto withdraw = [&](const Piece& piece) {
    if (piece.bytes > 0 && in_arena(piece.data, piece.bytes)) memory_.arena().withdraw(piece.data, piece.bytes);
  };
  // With staged outputs the caller's buffers are private: no other rank can write to them.
  if (output_staging_.data() == nullptr && !private_output_) {
    withdraw(request_.output);
    for (const Piece& piece : request_.outputs) withdraw(piece);
  }
  input_staging_.leak();
  output_staging_.leak();
}

// A rank that checked for an abort just before it happened may still claim a ticket. Therefore the claims are closed.
bool Collective::quiesce(Deadline deadline) const {
  std::uint64_t claimed = 0;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    claimed += close_claims(memory_.claim(rank, sequence_), sequence_);
  }
  while (tickets_done() < claimed) {
    if (!somebody_works()) return true;  // who has claimed the others has died
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace lockstep::comm
