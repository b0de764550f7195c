// Where samples come from. Your own dataset is one small class:
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

// Where the memory of batches comes from: the loader's, which is used again for later batches.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;
  // An uninitialised contiguous CPU tensor, page-locked when the loader wants it so. Thread-safe.
  virtual torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
};

// For what a sample is made: everything that its randomness may depend on, so that its pixels are the same for any
// number of workers, ranks and batches. A default one is epoch 0 of seed 0.
struct SampleContext {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  // What the randomness of each sample of the call is keyed by. Empty: by its index. The loader and views set it, so
  // that a sample has the index of the dataset that was given to the loader, and one drawn several times in an epoch
  // differs each time.
  std::span<const std::int64_t> keys = {};
  // Null: LibTorch's allocator.
  BatchMemory* memory = nullptr;

  // Of the sample at `position` of the call, whose index is `index`.
  std::int64_t key(std::size_t position, std::int64_t index) const { return keys.empty() ? index : keys[position]; }
  // For a call with that sample alone.
  SampleContext only(std::size_t position) const {
    return {seed, epoch, keys.empty() ? keys : keys.subspan(position, 1), memory};
  }
  // Uninitialised memory for a whole batch, to be written by get_batch and then moved out.
  torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return memory != nullptr ? memory->empty(sizes, dtype) : torch::empty(sizes, dtype);
  }
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Sample `index` of 0..size()-1. Called from several threads at once when the loader has workers. Reports trouble by
  // throwing, with the path where there is one; DataLoader adds the sample's index. Gradients are off. Randomness that
  // is drawn from LibTorch's global generator depends on the number of workers: datasets with random samples override
  // get_batch and draw from its context, or leave the randomness to map_dataset (views.h).
  virtual Example get(std::int64_t index) const = 0;

  // The batch of several samples, at least one. Datasets that can make it faster than one by one, or whose samples are
  // random, override it, and write straight into tensors from context.empty(); by default get() of each and stack().
  // Throws SampleError when get() throws.
  virtual Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const;
};

// [n, ...] from n examples of equal shapes, in memory from `context`. Throws DataError (kMismatch) naming the first
// position that differs.
Example stack(const std::vector<Example>& examples, const SampleContext& context = {});

}  // namespace lockstep::data
