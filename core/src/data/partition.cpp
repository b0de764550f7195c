#include "partition.h"

#include <algorithm>
#include <numeric>

#include "base/arithmetic.h"

namespace lockstep::data {

Partition::Partition(std::int64_t rank, std::int64_t world_size, Remainder remainder,
                     const std::vector<std::int64_t>& batches)
    : rank_(rank), world_size_(world_size), remainder_(remainder), batches_(batches) {
  if (batches_.empty()) return;
  const auto mine = batches_.begin() + rank;
  batch_ = *mine;
  before_ = std::accumulate(batches_.begin(), mine, std::int64_t{0});
  global_batch_ = std::accumulate(mine, batches_.end(), before_);
}

std::int64_t Partition::count(std::int64_t left) const {
  if (batch_ == 0) {
    if (remainder_ == Remainder::kDrop) return left / world_size_;
    const std::int64_t first = remainder_ == Remainder::kExact ? rank_ : 0;
    return left <= first ? 0 : (left - first - 1) / world_size_ + 1;
  }
  return left / global_batch_ * batch_ + tail_count(left % global_batch_);
}

std::int64_t Partition::position(std::int64_t k, std::int64_t left) const {
  if (batch_ == 0) return rank_ + k * world_size_;
  const std::int64_t full = left / global_batch_;
  if (k < full * batch_) return k / batch_ * global_batch_ + before_ + k % batch_;
  return full * global_batch_ + tail_begin(left % global_batch_) + (k - full * batch_);
}

std::int64_t Partition::consumed(std::int64_t k, std::int64_t left) const {
  if (batch_ == 0) return std::min(k * world_size_, left);
  return std::min(ceil_divide(k, batch_) * global_batch_, left);
}

// With kRepeat each rank's share is rounded up: all ranks have a last batch if one of them has. Otherwise the end of
// each share is rounded down, so that the shares add up to `rest`.
std::int64_t Partition::tail_begin(std::int64_t rest) const {
  if (remainder_ != Remainder::kRepeat) return rest * before_ / global_batch_;
  const auto part = [&](std::int64_t sum, std::int64_t batch) {
    return sum + ceil_divide(rest * batch, global_batch_);
  };
  return std::accumulate(batches_.begin(), batches_.begin() + rank_, std::int64_t{0}, part);
}

std::int64_t Partition::tail_count(std::int64_t rest) const {
  switch (remainder_) {
    case Remainder::kDrop: return 0;
    case Remainder::kExact: return rest * (before_ + batch_) / global_batch_ - rest * before_ / global_batch_;
    case Remainder::kRepeat: return ceil_divide(rest * batch_, global_batch_);
  }
  return 0;
}

}  // namespace lockstep::data
