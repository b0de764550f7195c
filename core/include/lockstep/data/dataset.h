// Datasets. A dataset of your own is one small class:
//
//   class Squares : public lockstep::data::Dataset {
//    public:
//     std::int64_t size() const override { return 1000; }
//     lockstep::data::Example get(std::int64_t index) const override {
//       return {torch::tensor(double(index)), torch::tensor(double(index * index))};
//     }
//   };
//
// For samples of another type than {data, target} use DatasetOf<Sample>, with any type that collate.h can make batches
// of.
#pragma once

#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/data/collate.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/sample_context.h"

namespace lockstep::data {

// Throws the exception that is being handled again: a SampleError as it is, any other exception nested in a SampleError
// with `index`.
[[noreturn]] void throw_sample_error(std::int64_t index);
// Thrown for a dataset whose batches are of another type than those of collate(), and which does not override
// get_batch.
[[noreturn]] void throw_no_get_batch();

// S: a sample. B: a batch, by default what collate() makes.
template <typename S, typename B = BatchOf<S>>
class DatasetOf {
 public:
  using SampleType = S;
  using BatchType = B;

  virtual ~DatasetOf() = default;

  virtual std::int64_t size() const = 0;

  // Sample `index` of 0..size()-1. Several threads call it at once when the loader has workers. Reports errors by
  // exceptions, with the path if there is one; DataLoader adds the sample's index. Gradients are off. Do not draw from
  // LibTorch's global generator: its numbers would depend on the number of workers. Datasets with random samples
  // override sample() or get_batch() and draw from the context, or leave the randomness to map_dataset (views.h).
  virtual S get(std::int64_t index) const = 0;

  // Sample `index` of one pass: override it for random samples. The context is for this sample only; draw from its
  // seed, its epoch and its key(0, index). By default get(index).
  virtual S sample(std::int64_t index, const SampleContext& /*context*/) const { return get(index); }

  // The batch of one or more samples. By default sample() of each and collate(). Override it to make batches faster
  // than one by one, in tensors from context.empty(). Throws SampleError when a sample cannot be made. A loader handles
  // a SkippedSample; without a loader it reaches the caller.
  virtual B get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const;
};

using Dataset = DatasetOf<Example>;

// One sample, as get_batch would make it. Throws SampleError.
template <typename S, typename B>
S make_sample(const DatasetOf<S, B>& dataset, std::int64_t index, const SampleContext& context) {
  note_sample(context.key(0, index));
  try {
    return dataset.sample(index, context);
  } catch (...) {
    throw_sample_error(index);
  }
}

// Returns make(i) for each position i of `indices`. If make(i) throws SkippedSample, the sample is left out and its
// position noted in `context`. Throws SkippedSample if all samples are left out. Throws SamplesToReplace, with the
// indices of all samples concerned, if any make(i) has thrown it.
template <typename S, typename Make>
std::vector<S> make_samples(std::span<const std::int64_t> indices, const SampleContext& context, const Make& make) {
  std::vector<S> samples;
  samples.reserve(indices.size());
  std::exception_ptr skipped;
  std::vector<std::int64_t> to_replace;
  std::string reason;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    try {
      samples.push_back(make(i));
    } catch (const SamplesToReplace& error) {
      to_replace.push_back(indices[i]);
      reason = error.what();
    } catch (const SkippedSample&) {
      skipped = std::current_exception();
      context.note_left_out(i);
    }
  }
  if (!to_replace.empty()) throw SamplesToReplace(std::move(to_replace), reason);
  if (samples.empty() && skipped) std::rethrow_exception(skipped);
  return samples;
}

template <typename S, typename B>
B DatasetOf<S, B>::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  if constexpr (std::is_same_v<B, BatchOf<S>>) {
    return collate(make_samples<S>(indices, context,
                                   [&](std::size_t i) { return make_sample(*this, indices[i], context.only(i)); }),
                   context);
  } else {
    throw_no_get_batch();
  }
}

extern template class DatasetOf<Example>;

// The only sample of a batch of one.
Example only_sample(const Example& batch);

// Returns one sample of any dataset. A dataset of {data, target} may override get_batch alone, so it is asked for a
// batch of one.
template <typename S, typename B>
S one_sample(const DatasetOf<S, B>& dataset, std::int64_t index, const SampleContext& context) {
  if constexpr (std::is_same_v<S, Example> && std::is_same_v<B, Example>) {
    return only_sample(dataset.get_batch(std::span<const std::int64_t>(&index, 1), context));
  } else {
    return make_sample(dataset, index, context);
  }
}

// A dataset's class, from the class itself or from a shared_ptr to it.
template <typename D>
struct DatasetClass {
  using Type = D;
};
template <typename D>
struct DatasetClass<std::shared_ptr<D>> {
  using Type = std::remove_const_t<D>;
};
template <typename D>
using SampleOf = typename DatasetClass<D>::Type::SampleType;
template <typename D>
using BatchTypeOf = typename DatasetClass<D>::Type::BatchType;

// D is a dataset with indices, or a shared_ptr to one.
template <typename D>
concept AnyDataset = std::derived_from<typename DatasetClass<D>::Type, DatasetOf<SampleOf<D>, BatchTypeOf<D>>>;

// Stacks n examples of equal shapes to [n, ...], in memory from `context`. Throws DataError (kMismatch) that names the
// first position that differs.
Example stack(const std::vector<Example>& examples, const SampleContext& context = {});

}  // namespace lockstep::data
