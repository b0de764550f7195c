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

// What a random choice about a sample may depend on, beside the sample itself. Equal on all ranks and in all workers,
// so that a sample is the same whoever makes it.
struct SampleContext {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Sample `index` of 0..size()-1. Called from several threads at once when the loader has workers. Reports trouble by
  // throwing; DataLoader adds the sample's index. Gradients are off. Randomness that is drawn from LibTorch's global
  // generator depends on the number of workers: datasets with random samples override get_batch and use its context.
  virtual Example get(std::int64_t index) const = 0;

  // The batch of several samples, at least one. Datasets that can make it faster than one by one, or whose samples are
  // random, override it; by default get() of each and stack(). Throws SampleError when get() throws.
  virtual Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const;
};

// [n, ...] from n examples of equal shapes. Throws DataError (kMismatch) naming the first position that differs.
Example stack(const std::vector<Example>& examples);

}  // namespace lockstep::data
