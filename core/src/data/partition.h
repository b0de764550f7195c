// How the positions of an epoch's sequence are split over the ranks. It does not look at the samples, so it works for
// every order.
#pragma once

#include <cstdint>
#include <vector>

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
  Partition(std::int64_t rank, std::int64_t world_size, Remainder remainder, const std::vector<std::int64_t>& batches);

  // How many positions this rank gets.
  std::int64_t count(std::int64_t left) const;
  // This rank's k-th position, for k < count(left). It is at or beyond `left` only with kRepeat.
  std::int64_t position(std::int64_t k, std::int64_t left) const;
  // How many positions all ranks together have used when this rank has used k. A batch that this rank has begun counts
  // as used by all ranks.
  std::int64_t consumed(std::int64_t k, std::int64_t left) const;

 private:
  // This rank's share of the last `rest` positions, which are too few for a global batch.
  std::int64_t tail_begin(std::int64_t rest) const;
  std::int64_t tail_count(std::int64_t rest) const;

  std::int64_t rank_;
  std::int64_t world_size_;
  Remainder remainder_;
  std::int64_t batch_ = 0;         // of this rank; 0: without batches
  std::int64_t before_ = 0;        // sum of the batches of lower ranks
  std::int64_t global_batch_ = 0;  // sum of all batches
  std::vector<std::int64_t> batches_;
};

}  // namespace lockstep::data
