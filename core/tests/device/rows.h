// A dataset and loaders for the tests of the loader's way to a device.
#pragma once

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "lockstep/data/data_loader.h"

namespace lockstep::test {

// Sample i is a row of i, and the number i.
class Rows : public data::Dataset {
 public:
  explicit Rows(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override {
    return {torch::full({16}, static_cast<float>(index)), torch::tensor(index)};
  }

 private:
  std::int64_t size_;
};

// Batches of four.
inline data::DataLoaderOptions loader_options(torch::Device device, int workers) {
  return {.batch_size = 4, .num_workers = workers, .device = device, .rank = 0, .world_size = 1};
}

// Batches that are made by a function: the sum of their rows, and nothing beside it.
inline data::DataLoaderOptions with_sums(data::DataLoaderOptions options) {
  options.collate = [](std::vector<data::Example> samples) {
    std::vector<torch::Tensor> rows;
    for (const data::Example& sample : samples) rows.push_back(sample.data);
    return data::Example{torch::stack(rows).sum(0), torch::Tensor()};
  };
  return options;
}

}  // namespace lockstep::test
