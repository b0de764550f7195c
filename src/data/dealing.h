// Which positions of an epoch's sequence each rank gets. Knows nothing of what lies at a position, so one dealing
// serves every order.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

enum class Remainder {
  kRepeat,  // ranks get equally much (or, in turns, their batch's share): the sequence goes on from its start
  kDrop,    // what cannot be dealt out equally is left out
  kExact,   // every position to one rank
};

// Positions are counted from where the present ranks begin to deal; `left` of them are left of the epoch.
//
// Without batches, card by card: rank r of W gets r, r + W, ... With batches (one size per rank), hand by hand: of each
// sum(batches) positions, a global batch, rank r gets the next batches[r] in a row. A last, smaller global batch is
// split in the same proportions.
class Dealing {
 public:
  Dealing(std::int64_t rank, std::int64_t world_size, Remainder remainder, const std::vector<std::int64_t>& batches);

  // How many positions this rank gets.
  std::int64_t count(std::int64_t left) const;
  // Its k-th, k < count(left). At or beyond `left` only with kRepeat.
  std::int64_t position(std::int64_t k, std::int64_t left) const;
  // How many positions all ranks together have used when this one has used k. In mid-batch: when all have ended it.
  std::int64_t consumed(std::int64_t k, std::int64_t left) const;

 private:
  // This rank's part of the last `rest` positions, too few for a global batch.
  std::int64_t tail_begin(std::int64_t rest) const;
  std::int64_t tail_count(std::int64_t rest) const;

  std::int64_t rank_;
  std::int64_t world_size_;
  Remainder remainder_;
  std::int64_t batch_ = 0;         // 0: card by card
  std::int64_t before_ = 0;        // batches of the ranks below this
  std::int64_t global_batch_ = 0;  // of all
  std::vector<std::int64_t> batches_;
};

}  // namespace lockstep::data
