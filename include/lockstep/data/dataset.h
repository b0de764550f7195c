// Datasets. Your own is one small class:
//
//   class Squares : public lockstep::data::Dataset {
//    public:
//     std::int64_t size() const override { return 1000; }
//     lockstep::data::Example get(std::int64_t index) const override {
//       return {torch::tensor(double(index)), torch::tensor(double(index * index))};
//     }
//   };
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

// `data` and `target` of one sample, or of a batch of them.
using Example = torch::data::Example<>;

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
  // The random key of each sample of the call. Empty: its index. Views set the keys, so that a sample's key is its
  // index in the dataset that the loader has. The loader sets them when an epoch has a sample several times, so that
  // its randomness differs each time.
  std::span<const std::int64_t> keys = {};
  // Null: LibTorch's allocator.
  BatchMemory* memory = nullptr;

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

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Sample `index` of 0..size()-1. Several threads call it at once when the loader has workers. Reports errors by
  // exceptions, with the path if there is one; DataLoader adds the sample's index. Gradients are off. Do not draw from
  // LibTorch's global generator: its numbers would depend on the number of workers. Datasets with random samples
  // override get_batch and draw from its context, or leave the randomness to map_dataset (views.h).
  virtual Example get(std::int64_t index) const = 0;

  // The batch of one or more samples. By default get() of each and stack(). Override it to make batches faster than one
  // by one, in tensors from context.empty(), or to make random samples. Throws SampleError when get() throws.
  virtual Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const;
};

// Stacks n examples of equal shapes to [n, ...], in memory from `context`. Throws DataError (kMismatch) that names the
// first position that differs.
Example stack(const std::vector<Example>& examples, const SampleContext& context = {});

}  // namespace lockstep::data
