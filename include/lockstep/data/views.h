// Datasets made of other datasets: a subset, several one after another, a function of each sample, repetitions. Subset
// and ConcatDataset are those of torch.utils.data. A view is a dataset, so views combine:
//
//   auto train = map_dataset(Subset(Mnist("data", true), first_thousand), add_noise);
//   DataLoader loader(repeat(train, 10), {.batch_size = 64, .shuffle = true});
//
// Views share their datasets and copy no samples. They pass whole batches to them, with the context of the call: the
// random key of a sample is its index in the outermost view, which the loader has. A SampleError of an inner dataset is
// thrown again with the view's own index in front. Immutable; thread-safe if the inner datasets are. Constructors throw
// DataError (kInvalidArgument).
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// Any dataset, by value or as a shared_ptr.
class SharedDataset {
 public:
  template <typename D>
  requires std::derived_from<std::remove_cvref_t<D>, Dataset> SharedDataset(
      D&& dataset)  // NOLINT(google-explicit-constructor, bugprone-forwarding-reference-overload)
      : dataset_(std::make_shared<const std::remove_cvref_t<D>>(std::forward<D>(dataset))) {}
  template <std::derived_from<Dataset> D>
  SharedDataset(std::shared_ptr<D> dataset)  // NOLINT(google-explicit-constructor)
      : SharedDataset(std::shared_ptr<const Dataset>(std::move(dataset))) {}
  SharedDataset(std::shared_ptr<const Dataset> dataset);  // NOLINT(google-explicit-constructor)

  const Dataset& operator*() const { return *dataset_; }
  const Dataset* operator->() const { return dataset_.get(); }

 private:
  std::shared_ptr<const Dataset> dataset_;  // not null
};

// The samples at `indices` of a dataset, in that order.
class Subset : public Dataset {
 public:
  Subset(SharedDataset dataset, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

 private:
  SharedDataset dataset_;
  std::vector<std::int64_t> indices_;
};

// Several datasets one after another. A batch may hold samples of several of them, if their shapes are equal.
class ConcatDataset : public Dataset {
 public:
  explicit ConcatDataset(std::vector<SharedDataset> datasets);

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

 private:
  std::size_t part_of(std::int64_t index) const;
  Example part_of_batch(std::size_t part, std::span<const std::int64_t> indices, const SampleContext& context) const;

  std::vector<SharedDataset> datasets_;
  std::vector<std::int64_t> ends_;  // the end of each dataset, as an index of this one
};

// Returns the new sample. The context is for this sample only: draw randomness from context.seed, context.epoch and
// context.keys[0]. Several threads call it at once.
using SampleFunction = std::function<Example(Example sample, const SampleContext& context)>;

// function(sample, context) for each sample, called when the sample is needed. map_dataset also takes function(sample).
class MapDataset : public Dataset {
 public:
  MapDataset(SharedDataset dataset, SampleFunction function);

  std::int64_t size() const override { return dataset_->size(); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

 private:
  SharedDataset dataset_;
  SampleFunction function_;
};

template <typename F>
MapDataset map_dataset(SharedDataset dataset, F function) {
  if constexpr (std::is_invocable_r_v<Example, const F&, Example, const SampleContext&>) {
    return MapDataset(std::move(dataset), std::move(function));
  } else {
    return MapDataset(std::move(dataset), [function = std::move(function)](Example sample, const SampleContext&) {
      return function(std::move(sample));
    });
  }
}

// `times` passes over a dataset as one epoch, so that workers wait less often for a new epoch. Random transforms draw
// different numbers in each pass.
class RepeatDataset : public Dataset {
 public:
  RepeatDataset(SharedDataset dataset, std::int64_t times);

  std::int64_t size() const override { return dataset_->size() * times_; }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

 private:
  SharedDataset dataset_;
  std::int64_t times_;
};

inline RepeatDataset repeat(SharedDataset dataset, std::int64_t times) {
  return {std::move(dataset), times};
}

}  // namespace lockstep::data
