// Datasets made of other datasets: a subset, several one after another, a function of each sample, repetitions, random
// parts. Subset, ConcatDataset and random_split work as in torch.utils.data. A view is a dataset, so views combine:
//
//   auto train = map_dataset(Subset(Mnist("data", true), first_thousand), add_noise);
//   DataLoader loader(repeat(train, 10), {.batch_size = 64, .shuffle = true});
//
// Views share their datasets and copy no samples. A view passes whole batches to its dataset, with the context of the
// call: the random key of a sample is its index in the outermost view, which is the loader's dataset. A SampleError of
// an inner dataset is thrown again with the view's own index in front. Immutable; thread-safe if the inner datasets
// are. Constructors throw DataError (kInvalidArgument).
//
// Subset, ConcatDataset and so on are for samples {data, target}; SubsetOf<S> and so on for samples of any type.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// The arithmetic and the errors of views, whatever their samples are.
namespace view {

void require_dataset(const void* dataset);
void require_index(std::int64_t index, std::int64_t size);
void require_indices(std::span<const std::int64_t> indices, std::int64_t size);
void require_times(std::int64_t times);
void require_function(bool there);
// Throws the SampleError that is being handled again, with the view's own indices (`outer`) of the same samples.
[[noreturn]] void throw_outer_error(std::span<const std::int64_t> outer, std::span<const std::int64_t> inner);
// The context with keys: the view's own indices, unless an outer view has set others.
SampleContext with_keys(std::span<const std::int64_t> indices, const SampleContext& context);
std::vector<std::int64_t> translate(std::span<const std::int64_t> indices, std::int64_t size,
                                    const std::function<std::int64_t(std::int64_t)>& to_inner);
// The indices of each part of a random split.
std::vector<std::vector<std::int64_t>> split(std::int64_t size, const std::vector<double>& lengths, std::uint64_t seed);

// A batch of samples of several datasets, with one call to each: sample i is in dataset parts[i].
using BatchOfPart =
    std::function<Example(std::size_t part, std::span<const std::int64_t> indices, const SampleContext& context)>;
Example mixed_batch(std::span<const std::int64_t> indices, const std::vector<std::size_t>& parts,
                    const SampleContext& context, const BatchOfPart& batch_of_part);

// The batch of the `inner` indices of the inner dataset. `outer` are the same samples as indices of the view.
template <typename S, typename B>
B batch_below(const DatasetOf<S, B>& dataset, std::span<const std::int64_t> outer, std::span<const std::int64_t> inner,
              const SampleContext& context) {
  try {
    return dataset.get_batch(inner, with_keys(outer, context));
  } catch (...) {
    throw_outer_error(outer, inner);
  }
}

template <typename S, typename B>
S sample_below(const DatasetOf<S, B>& dataset, std::int64_t outer, std::int64_t inner, const SampleContext& context) {
  try {
    return one_sample(dataset, inner, with_keys(std::span<const std::int64_t>(&outer, 1), context));
  } catch (...) {
    throw_outer_error(std::span<const std::int64_t>(&outer, 1), std::span<const std::int64_t>(&inner, 1));
  }
}

}  // namespace view

// Any dataset, by value or as a shared_ptr.
template <typename S, typename B = BatchOf<S>>
class SharedDatasetOf {
 public:
  template <typename D>
  requires std::derived_from<std::remove_cvref_t<D>, DatasetOf<S, B>> SharedDatasetOf(
      D&& dataset)  // NOLINT(google-explicit-constructor, bugprone-forwarding-reference-overload)
      : dataset_(std::make_shared<const std::remove_cvref_t<D>>(std::forward<D>(dataset))) {}
  template <std::derived_from<DatasetOf<S, B>> D>
  SharedDatasetOf(std::shared_ptr<D> dataset)  // NOLINT(google-explicit-constructor)
      : SharedDatasetOf(std::shared_ptr<const DatasetOf<S, B>>(std::move(dataset))) {}
  SharedDatasetOf(std::shared_ptr<const DatasetOf<S, B>> dataset)  // NOLINT(google-explicit-constructor)
      : dataset_(std::move(dataset)) {
    view::require_dataset(dataset_.get());
  }

  const DatasetOf<S, B>& operator*() const { return *dataset_; }
  const DatasetOf<S, B>* operator->() const { return dataset_.get(); }

 private:
  std::shared_ptr<const DatasetOf<S, B>> dataset_;  // not null
};
using SharedDataset = SharedDatasetOf<Example>;

// A view whose sample `index` is sample inner(index) of another dataset.
template <typename S, typename B = BatchOf<S>>
class IndexedViewOf : public DatasetOf<S, B> {
 public:
  S get(std::int64_t index) const override { return dataset_->get(inner(index)); }
  S sample(std::int64_t index, const SampleContext& context) const override {
    return view::sample_below(*dataset_, index, inner(index), context);
  }
  B get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override {
    const auto inside = view::translate(indices, this->size(), [this](std::int64_t index) { return inner(index); });
    return view::batch_below(*dataset_, indices, inside, context);
  }

 protected:
  explicit IndexedViewOf(SharedDatasetOf<S, B> dataset) : dataset_(std::move(dataset)) {}
  std::int64_t inner_size() const { return dataset_->size(); }

 private:
  // Throws if the view has no such index.
  virtual std::int64_t inner(std::int64_t index) const = 0;

  SharedDatasetOf<S, B> dataset_;
};

// The samples at `indices` of a dataset, in that order.
template <typename S, typename B = BatchOf<S>>
class SubsetOf : public IndexedViewOf<S, B> {
 public:
  SubsetOf(SharedDatasetOf<S, B> dataset, std::vector<std::int64_t> indices)
      : IndexedViewOf<S, B>(std::move(dataset)), indices_(std::move(indices)) {
    view::require_indices(indices_, this->inner_size());
  }

  const std::vector<std::int64_t>& indices() const { return indices_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }

 private:
  std::int64_t inner(std::int64_t index) const override {
    view::require_index(index, size());
    return indices_[static_cast<std::size_t>(index)];
  }

  std::vector<std::int64_t> indices_;
};
using Subset = SubsetOf<Example>;
template <typename D>
SubsetOf(D, std::vector<std::int64_t>) -> SubsetOf<SampleOf<D>, BatchTypeOf<D>>;

// Several datasets one after another. A batch may hold samples of several of them, if their shapes are equal.
template <typename S>
class ConcatDatasetOf : public DatasetOf<S> {
 public:
  explicit ConcatDatasetOf(std::vector<SharedDatasetOf<S>> datasets) : datasets_(std::move(datasets)) {
    for (const SharedDatasetOf<S>& dataset : datasets_) ends_.push_back(size() + dataset->size());
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  S get(std::int64_t index) const override {
    const std::size_t part = part_of(index);
    return datasets_[part]->get(index - begin_of(part));
  }
  S sample(std::int64_t index, const SampleContext& context) const override {
    const std::size_t part = part_of(index);
    return view::sample_below(*datasets_[part], index, index - begin_of(part), context);
  }
  BatchOf<S> get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override {
    std::vector<std::size_t> parts(indices.size());
    std::transform(indices.begin(), indices.end(), parts.begin(),
                   [this](std::int64_t index) { return part_of(index); });
    const bool mixed = std::adjacent_find(parts.begin(), parts.end(), std::not_equal_to<>()) != parts.end();
    if (!mixed && !parts.empty()) return batch_of_part(parts[0], indices, context);
    if constexpr (std::is_same_v<S, Example>) {
      return view::mixed_batch(
          indices, parts, context,
          [this](std::size_t part, auto here, const SampleContext& keyed) { return batch_of_part(part, here, keyed); });
    } else {
      return DatasetOf<S>::get_batch(indices, context);  // sample by sample
    }
  }

 private:
  BatchOf<S> batch_of_part(std::size_t part, std::span<const std::int64_t> indices,
                           const SampleContext& context) const {
    const std::int64_t begin = begin_of(part);
    const auto inside = view::translate(indices, size(), [begin](std::int64_t index) { return index - begin; });
    return view::batch_below(*datasets_[part], indices, inside, context);
  }
  std::int64_t begin_of(std::size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  std::size_t part_of(std::int64_t index) const {
    view::require_index(index, size());
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  }

  std::vector<SharedDatasetOf<S>> datasets_;
  std::vector<std::int64_t> ends_;  // the end of each dataset, as an index of this dataset
};
using ConcatDataset = ConcatDatasetOf<Example>;

// Returns the new sample. The context is for this sample only: draw randomness from context.seed, context.epoch and
// context.keys[0]. Several threads call it at once.
template <typename S, typename T>
using SampleFunctionOf = std::function<T(S sample, const SampleContext& context)>;
using SampleFunction = SampleFunctionOf<Example, Example>;

// function(sample, context) for each sample, called when the sample is needed. S: a sample of the dataset, B: its
// batch, T: the new sample. map_dataset also takes function(sample).
template <typename S, typename B, typename T>
class MapDatasetOf : public DatasetOf<T> {
 public:
  MapDatasetOf(SharedDatasetOf<S, B> dataset, SampleFunctionOf<S, T> function)
      : dataset_(std::move(dataset)), function_(std::move(function)) {
    view::require_function(function_ != nullptr);
  }

  std::int64_t size() const override { return dataset_->size(); }
  T get(std::int64_t index) const override {
    SampleContext context;
    context.keys = std::span<const std::int64_t>(&index, 1);
    return function_(dataset_->get(index), context);
  }
  T sample(std::int64_t index, const SampleContext& context) const override {
    const SampleContext keyed = view::with_keys(std::span<const std::int64_t>(&index, 1), context);
    return function_(one_sample(*dataset_, index, keyed), keyed);
  }

 private:
  SharedDatasetOf<S, B> dataset_;
  SampleFunctionOf<S, T> function_;
};
using MapDataset = MapDatasetOf<Example, Example, Example>;

template <AnyDataset D, typename F>
auto map_dataset(D dataset, F function) {
  using S = SampleOf<D>;
  using B = BatchTypeOf<D>;
  if constexpr (std::is_invocable_v<const F&, S, const SampleContext&>) {
    using T = std::remove_cvref_t<std::invoke_result_t<const F&, S, const SampleContext&>>;
    return MapDatasetOf<S, B, T>(std::move(dataset), std::move(function));
  } else {
    using T = std::remove_cvref_t<std::invoke_result_t<const F&, S>>;
    return MapDatasetOf<S, B, T>(std::move(dataset),
                                 [function = std::move(function)](S sample, const SampleContext& /*context*/) {
                                   return function(std::move(sample));
                                 });
  }
}

// `times` passes over a dataset as one epoch, so that workers wait less often for a new epoch. Random transforms draw
// different numbers in each pass.
template <typename S, typename B = BatchOf<S>>
class RepeatDatasetOf : public IndexedViewOf<S, B> {
 public:
  RepeatDatasetOf(SharedDatasetOf<S, B> dataset, std::int64_t times)
      : IndexedViewOf<S, B>(std::move(dataset)), times_(times) {
    view::require_times(times);
  }

  std::int64_t size() const override { return this->inner_size() * times_; }

 private:
  std::int64_t inner(std::int64_t index) const override {
    view::require_index(index, size());
    return index % this->inner_size();
  }

  std::int64_t times_;
};
using RepeatDataset = RepeatDatasetOf<Example>;

template <AnyDataset D>
RepeatDatasetOf<SampleOf<D>, BatchTypeOf<D>> repeat(D dataset, std::int64_t times) {
  return {std::move(dataset), times};
}

// Returns random parts that do not overlap: the subsets of torch.utils.data.random_split with a generator that is
// seeded with `seed`, index for index. `lengths` are either numbers of samples, which add up to the dataset's size, or
// fractions, which add up to 1. With fractions each number of samples is rounded down, and the remaining samples go to
// the first parts, one each.
// Throws DataError (kInvalidArgument) for other sums and for negative lengths.
template <AnyDataset D, typename Number>
requires std::is_arithmetic_v<Number> std::vector<SubsetOf<SampleOf<D>, BatchTypeOf<D>>> random_split(
    D dataset, const std::vector<Number>& lengths, std::uint64_t seed = 0) {
  const SharedDatasetOf<SampleOf<D>, BatchTypeOf<D>> shared(std::move(dataset));
  std::vector<SubsetOf<SampleOf<D>, BatchTypeOf<D>>> parts;
  for (auto& indices : view::split(shared->size(), std::vector<double>(lengths.begin(), lengths.end()), seed)) {
    parts.emplace_back(shared, std::move(indices));
  }
  return parts;
}
template <AnyDataset D, typename Number>
auto random_split(D dataset, std::initializer_list<Number> lengths, std::uint64_t seed = 0) {
  return random_split(std::move(dataset), std::vector<Number>(lengths), seed);
}

extern template class SubsetOf<Example>;
extern template class ConcatDatasetOf<Example>;
extern template class MapDatasetOf<Example, Example, Example>;
extern template class RepeatDatasetOf<Example>;

}  // namespace lockstep::data
