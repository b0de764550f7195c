// LibTorch's own datasets (torch::data::datasets) and those that programs have derived from them, for this loader:
//
//   DataLoader loader(from_torch(torch::data::datasets::MNIST("mnist")), {.batch_size = 64, .shuffle = true});
//
// A torch::data::datasets::Dataset<Self, S> becomes a DatasetOf<S>. A dataset that was mapped to whole batches, as by
// `.map(torch::data::transforms::Stack<>())`, makes its batches itself. A sample of such a dataset is a batch of one
// (for Example: the only sample of this batch).
//
// As in torch::data's loaders, each thread has a copy of the dataset: its get_batch() is not const. Random transforms
// of torch::data draw from LibTorch's global generator: what they draw depends on the number of workers. Stateful
// datasets and StreamDatasets have no indices: derive from IterableDatasetOf (iterable_dataset.h) instead.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

// The sample and batch types here for a torch::data dataset with batches of type Batch.
template <typename Batch>
struct TorchBatch {
  using SampleType = Batch;
  using BatchType = Batch;
};
template <typename S>
struct TorchBatch<std::vector<S>> {
  using SampleType = S;
  using BatchType = BatchOf<S>;
};

// D: a class derived from torch::data::datasets::BatchDataset, with a size, that can be copied.
template <typename D>
class TorchDataset : public DatasetOf<typename TorchBatch<typename D::BatchType>::SampleType,
                                      typename TorchBatch<typename D::BatchType>::BatchType> {
  using TorchBatchType = typename D::BatchType;
  using S = typename TorchBatch<TorchBatchType>::SampleType;
  using B = typename TorchBatch<TorchBatchType>::BatchType;
  static constexpr bool kListsSamples = std::is_same_v<TorchBatchType, std::vector<S>>;
  static_assert(!D::is_stateful && std::is_same_v<typename D::BatchRequestType, at::ArrayRef<std::size_t>>,
                "from_torch needs a dataset with indices: derive from IterableDatasetOf for one that gives its samples "
                "in an order of its own");

 public:
  // Throws DataError (kInvalidArgument) when the dataset does not know its size.
  explicit TorchDataset(D dataset) : copies_(std::make_shared<Copies>(std::move(dataset))) {
    const std::optional<std::size_t> size = copies_->original.size();
    if (!size) throw DataError(ErrorCode::kInvalidArgument, "from_torch: the dataset does not know its size");
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }
  S get(std::int64_t index) const override {
    TorchBatchType batch = torch_batch(std::span<const std::int64_t>(&index, 1));
    if constexpr (kListsSamples) {
      return std::move(batch.front());
    } else if constexpr (std::is_same_v<S, Example>) {
      return only_sample(batch);
    } else {
      return batch;
    }
  }
  B get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override {
    if constexpr (kListsSamples) {
      return DatasetOf<S, B>::get_batch(indices, context);  // errors name their sample
    } else {
      return torch_batch(indices);
    }
  }

 private:
  struct Copies {
    explicit Copies(D dataset) : original(std::move(dataset)) {}
    const D original;
    Mutex mutex;
    std::vector<std::unique_ptr<D>> free LOCKSTEP_GUARDED_BY(mutex);
  };

  TorchBatchType torch_batch(std::span<const std::int64_t> indices) const {
    const std::vector<std::size_t> numbers(indices.begin(), indices.end());
    std::unique_ptr<D> copy = take();
    TorchBatchType batch = copy->get_batch(numbers);
    MutexLock lock(copies_->mutex);
    copies_->free.push_back(std::move(copy));
    return batch;
  }
  std::unique_ptr<D> take() const {
    MutexLock lock(copies_->mutex);
    if (copies_->free.empty()) return std::make_unique<D>(copies_->original);
    std::unique_ptr<D> copy = std::move(copies_->free.back());
    copies_->free.pop_back();
    return copy;
  }

  std::shared_ptr<Copies> copies_;
  std::int64_t size_ = 0;
};

template <typename D>
TorchDataset<D> from_torch(D dataset) {
  return TorchDataset<D>(std::move(dataset));
}

}  // namespace lockstep::data
