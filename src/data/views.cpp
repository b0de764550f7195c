#include "lockstep/data/views.h"

#include <fmt/format.h>

#include <algorithm>

#include "exception_text.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

DataError wrong(const std::string& what) {
  return DataError(ErrorCode::kInvalidArgument, what);
}

void require_index(std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return;
  throw SampleError(index, fmt::format("expected an index from 0 to {}", size - 1));
}

// The context with keys: the view's own indices, unless an outer view has set others.
SampleContext with_keys(std::span<const std::int64_t> indices, const SampleContext& context) {
  SampleContext result = context;
  if (result.keys.empty()) result.keys = indices;
  return result;
}

// The batch of the `inner` indices of the inner dataset. `outer` are the same samples as indices of this view, for
// errors.
Example batch_below(const Dataset& dataset, std::span<const std::int64_t> outer, std::span<const std::int64_t> inner,
                    const SampleContext& context) {
  try {
    return dataset.get_batch(inner, with_keys(outer, context));
  } catch (const SampleError& error) {
    const auto found = std::find(inner.begin(), inner.end(), error.index());
    if (found == inner.end()) throw;
    const std::int64_t mine = outer[static_cast<std::size_t>(found - inner.begin())];
    if (mine == error.index()) throw;
    std::throw_with_nested(SampleError(mine, error.what()));
  }
}

template <typename Translate>
std::vector<std::int64_t> translate(std::span<const std::int64_t> indices, std::int64_t size, Translate to_inner) {
  std::vector<std::int64_t> inner(indices.size());
  std::transform(indices.begin(), indices.end(), inner.begin(), [&](std::int64_t index) {
    require_index(index, size);
    return to_inner(index);
  });
  return inner;
}

}  // namespace

SharedDataset::SharedDataset(std::shared_ptr<const Dataset> dataset) : dataset_(std::move(dataset)) {
  if (!dataset_) throw wrong("a view needs a dataset, got null");
}

Subset::Subset(SharedDataset dataset, std::vector<std::int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    if (indices_[i] >= 0 && indices_[i] < dataset_->size()) continue;
    throw wrong(fmt::format("index {} of the subset (at position {}) is not in the dataset: expected 0 to {}",
                            indices_[i], i, dataset_->size() - 1));
  }
}

Example Subset::get(std::int64_t index) const {
  require_index(index, size());
  return dataset_->get(indices_[static_cast<std::size_t>(index)]);
}

Example Subset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  const auto inner = translate(indices, size(), [&](auto index) { return indices_[static_cast<std::size_t>(index)]; });
  return batch_below(*dataset_, indices, inner, context);
}

ConcatDataset::ConcatDataset(std::vector<SharedDataset> datasets) : datasets_(std::move(datasets)) {
  for (const SharedDataset& dataset : datasets_) ends_.push_back(size() + dataset->size());
}

std::size_t ConcatDataset::part_of(std::int64_t index) const {
  require_index(index, size());
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
}

Example ConcatDataset::get(std::int64_t index) const {
  const std::size_t part = part_of(index);
  return datasets_[part]->get(part == 0 ? index : index - ends_[part - 1]);
}

Example ConcatDataset::part_of_batch(std::size_t part, std::span<const std::int64_t> indices,
                                     const SampleContext& context) const {
  const std::int64_t begin = part == 0 ? 0 : ends_[part - 1];
  const auto inner = translate(indices, size(), [&](auto index) { return index - begin; });
  return batch_below(*datasets_[part], indices, inner, context);
}

Example ConcatDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  std::vector<std::vector<std::size_t>> positions(datasets_.size());  // of the samples of each part in the batch
  for (std::size_t i = 0; i < indices.size(); ++i) positions[part_of(indices[i])].push_back(i);
  std::vector<Example> examples(indices.size());
  for (std::size_t part = 0; part < positions.size(); ++part) {
    const std::vector<std::size_t>& here = positions[part];
    if (here.size() == indices.size()) return part_of_batch(part, indices, context);
    if (here.empty()) continue;
    std::vector<std::int64_t> part_indices;
    std::vector<std::int64_t> part_keys;
    for (const std::size_t i : here) {
      part_indices.push_back(indices[i]);
      part_keys.push_back(context.key(i, indices[i]));
    }
    SampleContext part_context = context;
    part_context.keys = part_keys;
    const Example batch = part_of_batch(part, part_indices, part_context);
    for (std::size_t i = 0; i < here.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      examples[here[i]] = {batch.data[row], batch.target[row]};
    }
  }
  return stack(examples, context);
}

MapDataset::MapDataset(SharedDataset dataset, SampleFunction function)
    : dataset_(std::move(dataset)), function_(std::move(function)) {
  if (!function_) throw wrong("map_dataset needs a function, got none");
}

Example MapDataset::get(std::int64_t index) const {
  SampleContext context;
  context.keys = {&index, 1};
  return function_(dataset_->get(index), context);
}

Example MapDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  const SampleContext keyed = with_keys(indices, context);
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const SampleContext own = keyed.only(i);
    Example one = dataset_->get_batch(indices.subspan(i, 1), own);
    try {
      examples.push_back(function_({one.data[0], one.target[0]}, own));
    } catch (...) {
      std::throw_with_nested(SampleError(indices[i], current_exception_text()));
    }
  }
  return stack(examples, context);
}

RepeatDataset::RepeatDataset(SharedDataset dataset, std::int64_t times) : dataset_(std::move(dataset)), times_(times) {
  if (times < 1) throw wrong(fmt::format("a dataset can be repeated 1 or more times, got {}", times));
}

Example RepeatDataset::get(std::int64_t index) const {
  require_index(index, size());
  return dataset_->get(index % dataset_->size());
}

Example RepeatDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  const std::int64_t once = dataset_->size();
  const auto inner = translate(indices, size(), [&](auto index) { return index % once; });
  return batch_below(*dataset_, indices, inner, context);
}

}  // namespace lockstep::data
