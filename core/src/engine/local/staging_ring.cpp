#include <algorithm>
#include <utility>

#include "base/arithmetic.h"
#include "base/fault_point.h"
#include "shm/mapping.h"
#include "streams.h"

namespace lockstep::comm {

StagingRing::StagingRing(const GroupMemory& memory, const Waiting& waiting)
    : memory_(memory), waiting_(waiting), bytes_(kStreamChunks * stream_chunk_bytes(memory.size())) {}

Status StagingRing::begin_chunk(std::size_t bytes, Use use, const WaitFor& wait_for) {
  if (!std::exchange(touched_, true)) populate({memory_.stream(0), memory_.size() * bytes_});
  // This is never the place of the chunk before. That chunk begins at most one chunk before `next_place_`; and when
  // places start again at 0, it lies in the last two thirds.
  place_ = next_place_ + bytes > bytes_ ? 0 : next_place_;
  const std::size_t end = place_ + bytes;
  next_place_ = round_up(end, kLine);
  std::uint64_t last = 0;
  const auto forget_oldest = [&] {
    last = used_.front().number;
    used_.pop_front();
  };
  // The oldest are those that follow the newest in the ring.
  if (place_ == 0) {
    while (!used_.empty() && used_.front().begin > used_.back().begin) forget_oldest();
  }
  while (!used_.empty() && used_.front().begin < end && place_ < used_.front().end) forget_oldest();
  ++number_;
  if (bytes > 0) used_.push_back({number_, place_, end});
  if (use == Use::kReads || last == 0 || last < common_) return {};
  return laid_out_by_all(last + 1, wait_for);
}

void StagingRing::announce() {
  LOCKSTEP_FAULT_POINT("stream: laid out");
  memory_.state(memory_.rank()).laid_out.store(number_, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("stream: announced");
  waiting_.notify(true);
}

// All ranks are inside the call and copying, so this wait spins for longer than others: a core that is yielded to
// another program comes back only after milliseconds.
template <typename Reached>
Status StagingRing::wait(Reached reached, const WaitFor& wait_for) const {
  for (int i = 0; i < waiting_.patience(); ++i) {
    if (reached()) return {};
    waiting_.relax();
  }
  return wait_for(reached);
}

Status StagingRing::wait_for_rank(int rank, const WaitFor& wait_for) const {
  const std::atomic<std::uint64_t>& counter = memory_.state(rank).laid_out;
  return wait([&] { return counter.load(std::memory_order_acquire) >= number_; }, wait_for);
}

Status StagingRing::wait_for_everyone(const WaitFor& wait_for) {
  return laid_out_by_all(number_, wait_for);
}

Status StagingRing::wait_until_reduced(const WaitFor& wait_for) const {
  return reached_by_all(&RankState::reduced, number_, wait_for);
}

Status StagingRing::reached_by_all(std::atomic<std::uint64_t> RankState::*counter, std::uint64_t number,
                                   const WaitFor& wait_for) const {
  int next = 0;
  return wait(
      [&] {
        while (next < memory_.size() && (memory_.state(next).*counter).load(std::memory_order_acquire) >= number)
          ++next;
        return next == memory_.size();
      },
      wait_for);
}

Status StagingRing::laid_out_by_all(std::uint64_t number, const WaitFor& wait_for) {
  LOCKSTEP_RETURN_IF_ERROR(reached_by_all(&RankState::laid_out, number, wait_for));
  common_ = std::max(common_, number);
  return {};
}

}  // namespace lockstep::comm
