// LibTorch's dicts grow until no two many keys fall on neighbouring places of their table. Keys of a hostile file can
// be chosen so that they always do, and a table of a few keys would then take all memory. This counts what it would
// take.
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
