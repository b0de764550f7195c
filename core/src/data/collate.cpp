#include "lockstep/data/collate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

std::string name_of(const Column& column) {
  return column.place.empty() ? "the sample" : column.place;
}

void require_equal(const std::vector<torch::Tensor>& tensors, std::size_t position, const Column& column) {
  const torch::Tensor& first = tensors[0];
  const torch::Tensor& other = tensors[position];
  if (!first.defined() || !other.defined()) {
    throw DataError(ErrorCode::kMismatch, fmt::format("{} of the example at position {} in the batch is not defined",
                                                      name_of(column), first.defined() ? position : 0));
  }
  if (first.sizes() == other.sizes() && first.scalar_type() == other.scalar_type()) return;
  throw DataError(
      ErrorCode::kMismatch,
      fmt::format("{} at position {} in the batch is {} [{}], at position 0 it is {} [{}]: a batch needs equal "
                  "shapes and types; resize, pad or give the loader a collate function",
                  name_of(column), position, c10::toString(other.scalar_type()), fmt::join(other.sizes(), ", "),
                  c10::toString(first.scalar_type()), fmt::join(first.sizes(), ", ")));
}

}  // namespace

// Like torch::stack, but into memory from the context.
torch::Tensor stack_tensors(const std::vector<torch::Tensor>& tensors, const Column& column) {
  for (std::size_t i = 0; i < tensors.size(); ++i) require_equal(tensors, i, column);
  const torch::Tensor& first = tensors[0];
  const bool plain = first.is_cpu() && first.layout() == torch::kStrided;
  if (column.context.memory == nullptr || !plain) return torch::stack(tensors);
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(tensors.size())};
  sizes.insert(sizes.end(), first.sizes().begin(), first.sizes().end());
  torch::Tensor whole = column.context.empty(sizes, first.scalar_type());
  return torch::stack_out(whole, tensors);
}

void require_samples(std::size_t samples) {
  if (samples == 0) throw DataError(ErrorCode::kInvalidArgument, "cannot make a batch of no samples");
}

void require_int64(std::uint64_t number, std::size_t position, const Column& column) {
  if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return;
  throw DataError(
      ErrorCode::kInvalidArgument,
      fmt::format("{} at position {} in the batch is {}: batches of integers are int64, whose largest number "
                  "is 2^63 - 1; make it smaller, or a tensor of uint64",
                  name_of(column), position, number));
}

void require_equal_lengths(std::size_t first, std::size_t other, std::size_t position, const Column& column) {
  if (first == other) return;
  throw DataError(ErrorCode::kMismatch,
                  fmt::format("{} at position {} in the batch has {} elements, at position 0 it has {}: a batch needs "
                              "equal lengths; pad, or give the loader a collate function",
                              name_of(column), position, other, first));
}

void throw_other_keys(const std::string& key, std::size_t position, const Column& column) {
  throw DataError(ErrorCode::kMismatch,
                  fmt::format("{}: the sample at position {} in the batch and the one at position 0 have different "
                              "keys: only one of them has \"{}\"; a batch needs equal keys",
                              name_of(column), position, key));
}

}  // namespace lockstep::data
