#include "lockstep/data/views.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/data/errors.h"

namespace lockstep::data {

template class SubsetOf<Example>;
template class ConcatDatasetOf<Example>;
template class MapDatasetOf<Example, Example, Example>;
template class RepeatDatasetOf<Example>;

namespace view {
namespace {

DataError wrong(const std::string& what) {
  return DataError(ErrorCode::kInvalidArgument, what);
}

// math.isclose(sum, 1) and sum <= 1, as in Python. The sum is rounded once, as Python's since 3.12: 0.8 + 0.05 + 0.05 +
// 0.1 is 1, and not a little more.
bool are_fractions(const std::vector<double>& lengths) {
  const auto sum = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0.0L));
  return sum <= 1.0 && 1.0 - sum <= 1e-9;
}

std::vector<std::int64_t> whole_lengths(std::int64_t size, const std::vector<double>& lengths) {
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (!std::isfinite(lengths[i]) || lengths[i] < 0) {
      throw wrong(fmt::format("length {} of the split: expected 0 or more, found {}", i, lengths[i]));
    }
  }
  if (are_fractions(lengths)) {
    for (const double part : lengths) {
      result.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(size) * part)));
    }
    const std::int64_t left = size - std::accumulate(result.begin(), result.end(), std::int64_t{0});
    for (std::int64_t i = 0; i < left; ++i) ++result[static_cast<std::size_t>(i) % result.size()];
    return result;
  }
  double sum = 0;
  for (const double part : lengths) {
    result.push_back(static_cast<std::int64_t>(part));
    sum += part;
    if (static_cast<double>(result.back()) != part) sum = std::nan("");
  }
  if (sum == static_cast<double>(size)) return result;
  throw wrong(
      fmt::format("the lengths of a split must be whole numbers that add up to the {} samples of the dataset, or "
                  "fractions that add "
                  "up to 1; found {} lengths that add up to {}",
                  size, lengths.size(), std::accumulate(lengths.begin(), lengths.end(), 0.0)));
}

// In the handler of `error`.
template <typename Error>
[[noreturn]] void throw_with_outer(const Error& error, std::span<const std::int64_t> outer,
                                   std::span<const std::int64_t> inner) {
  const auto found = std::find(inner.begin(), inner.end(), error.index());
  if (found == inner.end()) throw;
  const std::int64_t mine = outer[static_cast<std::size_t>(found - inner.begin())];
  if (mine == error.index()) throw;
  std::throw_with_nested(Error(mine, error.what()));
}

// In the handler of `error`.
[[noreturn]] void throw_with_outer(const SamplesToReplace& error, std::span<const std::int64_t> outer,
                                   std::span<const std::int64_t> inner) {
  const std::vector<std::int64_t>& wanted = error.indices();
  std::vector<std::int64_t> mine;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (std::find(wanted.begin(), wanted.end(), inner[i]) != wanted.end()) mine.push_back(outer[i]);
  }
  if (mine.empty() || mine == wanted) throw;
  std::throw_with_nested(SamplesToReplace(std::move(mine), error.what()));
}

// Otherwise the rows could not be told apart.
void require_rows(const Example& batch, std::size_t wanted, std::size_t left_out) {
  const auto rows = static_cast<std::size_t>(batch.data.size(0));
  if (rows + left_out == wanted) return;
  throw DataError(
      ErrorCode::kMismatch,
      fmt::format("a dataset of a ConcatDataset made {} of {} samples and noted {} as left out: its get_batch "
                  "must note each one (SampleContext::left_out)",
                  rows, wanted, left_out));
}

}  // namespace

void require_dataset(const void* dataset) {
  if (dataset == nullptr) throw wrong("a view needs a dataset, got null");
}

void require_index(std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return;
  throw SampleError(index, fmt::format("expected an index from 0 to {}", size - 1));
}

void require_indices(std::span<const std::int64_t> indices, std::int64_t size) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < size) continue;
    throw wrong(fmt::format("index {} of the subset (at position {}) is not in the dataset: expected 0 to {}",
                            indices[i], i, size - 1));
  }
}

void require_times(std::int64_t times) {
  if (times < 1) throw wrong(fmt::format("a dataset can be repeated 1 or more times, got {}", times));
}

void require_function(bool there) {
  if (!there) throw wrong("map_dataset needs a function, got none");
}

void throw_outer_error(std::span<const std::int64_t> outer, std::span<const std::int64_t> inner) {
  try {
    throw;
  } catch (const SamplesToReplace& error) {
    throw_with_outer(error, outer, inner);
  } catch (const SkippedSample& error) {
    throw_with_outer(error, outer, inner);
  } catch (const SampleError& error) {
    throw_with_outer(error, outer, inner);
  }
}

SampleContext with_keys(std::span<const std::int64_t> indices, const SampleContext& context) {
  SampleContext result = context;
  if (result.keys.empty()) result.keys = indices;
  return result;
}

std::vector<std::int64_t> translate(std::span<const std::int64_t> indices, std::int64_t size,
                                    const std::function<std::int64_t(std::int64_t)>& to_inner) {
  std::vector<std::int64_t> inner(indices.size());
  std::transform(indices.begin(), indices.end(), inner.begin(), [&](std::int64_t index) {
    require_index(index, size);
    return to_inner(index);
  });
  return inner;
}

Example mixed_batch(std::span<const std::int64_t> indices, const std::vector<std::size_t>& parts,
                    const SampleContext& context, const BatchOfPart& batch_of_part) {
  if (indices.empty()) return stack({}, context);  // throws
  std::vector<std::vector<std::size_t>> positions(*std::max_element(parts.begin(), parts.end()) + 1);
  for (std::size_t i = 0; i < parts.size(); ++i) positions[parts[i]].push_back(i);
  std::vector<Example> examples(indices.size());
  std::exception_ptr skipped;
  std::vector<std::int64_t> to_replace;
  std::string reason;
  for (std::size_t part = 0; part < positions.size(); ++part) {
    const std::vector<std::size_t>& here = positions[part];
    if (here.empty()) continue;
    std::vector<std::int64_t> part_indices;
    std::vector<std::int64_t> part_keys;
    for (const std::size_t i : here) {
      part_indices.push_back(indices[i]);
      part_keys.push_back(context.key(i, indices[i]));
    }
    SampleContext part_context = context;
    part_context.keys = part_keys;
    std::vector<std::size_t> left_out;
    part_context.left_out = &left_out;
    Example batch;
    try {
      batch = batch_of_part(part, part_indices, part_context);
    } catch (const SamplesToReplace& error) {
      to_replace.insert(to_replace.end(), error.indices().begin(), error.indices().end());
      reason = error.what();
      continue;
    } catch (const SkippedSample&) {
      skipped = std::current_exception();
      continue;
    }
    require_rows(batch, here.size(), left_out.size());
    std::int64_t row = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (std::binary_search(left_out.begin(), left_out.end(), i)) continue;
      examples[here[i]] = {batch.data[row], batch.target[row]};
      ++row;
    }
  }
  for (std::size_t i = 0; i < examples.size(); ++i) {
    if (!examples[i].data.defined()) context.note_left_out(i);
  }
  if (!to_replace.empty()) throw SamplesToReplace(std::move(to_replace), reason);
  std::erase_if(examples, [](const Example& example) { return !example.data.defined(); });
  if (examples.empty() && skipped) std::rethrow_exception(skipped);
  return stack(examples, context);
}

std::vector<std::vector<std::int64_t>> split(std::int64_t size, const std::vector<double>& lengths,
                                             std::uint64_t seed) {
  if (lengths.empty()) throw wrong("a split needs at least one length, got none");
  const std::vector<std::int64_t> counts = whole_lengths(size, lengths);
  const torch::Tensor order =
      torch::randperm(size, at::make_generator<at::CPUGeneratorImpl>(seed), torch::TensorOptions().dtype(torch::kLong));
  const std::int64_t* next = order.const_data_ptr<std::int64_t>();
  std::vector<std::vector<std::int64_t>> parts;
  for (const std::int64_t count : counts) {
    parts.emplace_back(next, next + count);
    next += count;
  }
  return parts;
}

}  // namespace view
}  // namespace lockstep::data
