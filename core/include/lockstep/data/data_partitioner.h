// DataPartitioner: a seeded split of a dataset's indices by fractions, as in the tutorial "Writing Distributed
// Applications with PyTorch". For teaching and tests; DistributedSampler is for training.
//
//   DataPartitioner partitioner(dataset.size(), std::vector<double>(world_size, 1.0 / world_size));
//   std::span<const std::int64_t> mine = partitioner.use(rank);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

class DataPartitioner {
 public:
  // Shuffles 0..size-1 as Python's random.Random(seed).shuffle does: the same order as in the tutorial. Partition i
  // gets the next floor(fractions[i] * size) indices; the rest belongs to no partition. Throws DataError
  // (kInvalidArgument) for a size below 0 or above 2^32 - 1, a negative fraction, and fractions that add up to more
  // than 1.
  DataPartitioner(std::int64_t size, const std::vector<double>& fractions, std::uint32_t seed = 1234);

  int partitions() const { return static_cast<int>(begins_.size()) - 1; }
  // Indices of one partition; valid as long as the partitioner. Throws DataError when there is no such partition.
  std::span<const std::int64_t> use(int partition) const;

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> begins_;  // begin of each partition, and the end of the last one
};

}  // namespace lockstep::data
