// A dict of LibTorch doubles its table when too many keys fall on neighbouring places. A hostile file can choose keys
// that always do, and then a table of a few keys takes all memory. DictGrowth calculates the size of the tables
// beforehand.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace lockstep::checkpoint {

class DictGrowth {
 public:
  // Notes one more dict with these keys. Throws CheckpointError (kCorrupt) when the tables of all dicts together would
  // be far larger than their keys need.
  void add(const std::vector<c10::IValue>& keys);

 private:
  std::uint64_t keys_ = 0;
  std::uint64_t places_ = 0;
};

}  // namespace lockstep::checkpoint
