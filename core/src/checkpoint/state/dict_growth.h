// A dict of LibTorch doubles its table when too many keys fall on neighbouring places. A hostile file can choose keys
// that always do, and then a table of a few keys takes all memory. DictGrowth calculates the size of the tables
// beforehand.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

class DictGrowth {
 public:
  // Notes one more dict with these keys. Throws CheckpointError (kCorrupt) when the tables of all dicts together would
  // be far larger than their keys need.
  void add(const std::vector<c10::IValue>& keys);

  // The dict of these keys and values, noted before it is made. If two values have the same key, the last counts.
  c10::impl::GenericDict make(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries);

 private:
  std::uint64_t keys_ = 0;
  std::uint64_t places_ = 0;
  std::uint64_t key_bytes_ = 0;  // a short file can use a long text as a key many times, and each is hashed
};

}  // namespace lockstep::checkpoint
