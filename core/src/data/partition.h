// How the positions of an epoch's sequence are split over the ranks. It does not look at the samples, so it works for
// every order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/arithmetic.h"

namespace lockstep::data {

enum class Remainder {
  kRepeat,  // all ranks get the same number of positions (with batches: of batches); the first ones are repeated
  kDrop,    // positions that cannot be split equally are left out
  kExact,   // each position belongs to exactly one rank
};

// Positions are counted from the place in the epoch where these ranks begin; `left` of them are left of the epoch.
//
// Without batches, ranks take turns: rank r of W gets r, r + W, ... With batches (one size for each rank), a global
// batch has sum(batches) positions, and rank r gets batches[r] of them in a row. A last, smaller global batch is split
// in the same proportions.
class Partition {
 public:
  Partition(std::int64_t rank, std::int64_t world_size, Remainder remainder, const std::vector<std::int64_t>& batches)
      : rank_(rank), world_size_(world_size), remainder_(remainder), batches_(batches) {
    if (batches_.empty()) return;
    const auto mine = batches_.begin() + rank;
    batch_ = *mine;
    before_ = std::accumulate(batches_.begin(), mine, std::int64_t{0});
    global_batch_ = std::accumulate(mine, batches_.end(), before_);
  }

  // How many positions this rank gets.
  std::int64_t count(std::int64_t left) const {
    if (batch_ == 0) {
      if (remainder_ == Remainder::kDrop) return left / world_size_;
      const std::int64_t first = remainder_ == Remainder::kExact ? rank_ : 0;
      return left <= first ? 0 : (left - first - 1) / world_size_ + 1;
    }
    return left / global_batch_ * batch_ + tail_count(left % global_batch_);
  }

  // This rank's k-th position, for k < count(left). It is at or beyond `left` only with kRepeat.
  std::int64_t position(std::int64_t k, std::int64_t left) const {
    if (batch_ == 0) return rank_ + k * world_size_;
    const std::int64_t full = left / global_batch_;
    if (k < full * batch_) return k / batch_ * global_batch_ + before_ + k % batch_;
    return full * global_batch_ + tail_begin(left % global_batch_) + (k - full * batch_);
  }

  // How many positions all ranks together have used when this rank has used k. A batch that this rank has begun counts
  // as used by all ranks.
  std::int64_t consumed(std::int64_t k, std::int64_t left) const {
    if (batch_ == 0) return std::min(k * world_size_, left);
    return std::min(ceil_divide(k, batch_) * global_batch_, left);
  }

 private:
  // This rank's share of the last `rest` positions, which are too few for a global batch.
  // With kRepeat each rank's share is rounded up: all ranks have a last batch if one of them has. Otherwise the end of
  // each share is rounded down, so that the shares add up to `rest`.
  std::int64_t tail_begin(std::int64_t rest) const {
    if (remainder_ != Remainder::kRepeat) return rest * before_ / global_batch_;
    const auto part = [&](std::int64_t sum, std::int64_t batch) {
      return sum + ceil_divide(rest * batch, global_batch_);
    };
    return std::accumulate(batches_.begin(), batches_.begin() + rank_, std::int64_t{0}, part);
  }

  std::int64_t tail_count(std::int64_t rest) const {
    switch (remainder_) {
      case Remainder::kDrop: return 0;
      case Remainder::kExact: return rest * (before_ + batch_) / global_batch_ - rest * before_ / global_batch_;
      case Remainder::kRepeat: return ceil_divide(rest * batch_, global_batch_);
    }
    return 0;
  }

  std::int64_t rank_;
  std::int64_t world_size_;
  Remainder remainder_;
  std::int64_t batch_ = 0;         // of this rank; 0: without batches
  std::int64_t before_ = 0;        // sum of the batches of lower ranks
  std::int64_t global_batch_ = 0;  // sum of all batches
  std::vector<std::int64_t> batches_;
};

}  // namespace lockstep::data
