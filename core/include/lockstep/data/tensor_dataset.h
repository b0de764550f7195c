// Samples that are rows of tensors in memory.
//
//   TensorDataset train(inputs, labels);  // {data, target}
//
// The tensors are shared, not copied: do not change them while a loader has the dataset. A batch is a copy of its rows.
#pragma once

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// As torch.utils.data.TensorDataset of two tensors.
class TensorDataset : public Dataset {
 public:
  // The first dimension numbers the samples: data [n, ...], target [n, ...]. Throws DataError (kInvalidArgument) for
  // undefined tensors, tensors without dimensions and different n.
  TensorDataset(torch::Tensor data, torch::Tensor target);

  std::int64_t size() const override { return data_.size(0); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

 private:
  torch::Tensor data_;
  torch::Tensor target_;
};

}  // namespace lockstep::data
