// What a dataset may use to make a sample or a batch: the keys of its randomness, and memory for whole batches.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

// Allocates batches. The loader's implementation reuses the memory of earlier batches.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;
  // An uninitialized contiguous CPU tensor, page-locked if the loader was made with pin_memory. Thread-safe.
  virtual torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
};

// Everything that the randomness of a sample may depend on. A sample then is the same for any number of workers and
// ranks and any batch size. By default: epoch 0 of seed 0.
struct SampleContext {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  // The random key of each sample of the call. Empty: the key of a sample is its index. Views set the keys, so that a
  // sample's key is its index in the dataset that the loader has. The loader sets them when an epoch has a sample
  // several times, so that its randomness differs each time.
  std::span<const std::int64_t> keys = {};
  // Null: LibTorch's allocator.
  BatchMemory* memory = nullptr;
  // If not null: a get_batch that leaves out samples (SkippedSample) adds their positions in `indices` here, in
  // ascending order.
  std::vector<std::size_t>* left_out = nullptr;

  void note_left_out(std::size_t position) const {
    if (left_out != nullptr) left_out->push_back(position);
  }
  // The key of the sample at `position` of the call, whose index is `index`.
  std::int64_t key(std::size_t position, std::int64_t index) const { return keys.empty() ? index : keys[position]; }
  // The context for a call with only that sample.
  SampleContext only(std::size_t position) const {
    return {seed, epoch, keys.empty() ? keys : keys.subspan(position, 1), memory};
  }
  // Uninitialized memory for a whole batch, for get_batch to write and return.
  torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return memory != nullptr ? memory->empty(sizes, dtype) : torch::empty(sizes, dtype);
  }
};

// Notes which sample the present thread makes, for the error of a loader's timeout. `key`: the sample's number in the
// dataset that the loader has. Datasets that override get_batch may call it; it costs next to nothing.
void note_sample(std::int64_t key);

}  // namespace lockstep::data
