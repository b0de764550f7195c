#include "lockstep/data/dataset.h"

#include <fmt/format.h>

#include "data/exception_text.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/tensor_dataset.h"

namespace lockstep::data {

template class DatasetOf<Example>;

void throw_sample_error(std::int64_t index) {
  try {
    throw;
  } catch (const SampleError&) {
    throw;
  } catch (...) {
    std::throw_with_nested(SampleError(index, current_exception_text()));
  }
}

void throw_no_get_batch() {
  throw DataError(
      ErrorCode::kUnsupported,
      "this dataset has a batch type of its own: override get_batch, or give the loader a collate function");
}

Example only_sample(const Example& batch) {
  const auto first = [](const torch::Tensor& tensor) { return tensor.defined() ? tensor[0] : tensor; };
  return {first(batch.data), first(batch.target)};
}

Example stack(const std::vector<Example>& examples, const SampleContext& context) {
  return collate(examples, context);
}

namespace {

void require_rows(const torch::Tensor& tensor, const std::string& name, std::int64_t rows) {
  const auto fail = [&](const std::string& found) {
    throw DataError(ErrorCode::kInvalidArgument, fmt::format("{}: {}", name, found));
  };
  if (!tensor.defined()) fail("expected a tensor, found an undefined one");
  if (tensor.dim() == 0) fail("expected one row for each sample, found a tensor without dimensions");
  if (tensor.size(0) != rows)
    fail(fmt::format("expected {} samples as in the first tensor, found {}", rows, tensor.size(0)));
}

std::int64_t rows_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : 0;
}

void require_indices(std::span<const std::int64_t> indices, std::int64_t size) {
  for (const std::int64_t index : indices) {
    if (index >= 0 && index < size) continue;
    throw SampleError(index, fmt::format("there are {} samples, 0 to {}", size, size - 1));
  }
}

// The rows at `indices`, an int64 tensor, in memory from the context.
torch::Tensor rows(const torch::Tensor& from, const torch::Tensor& indices, const SampleContext& context) {
  const bool plain = from.is_cpu() && from.layout() == torch::kStrided;
  if (context.memory == nullptr || !plain) return torch::index_select(from, 0, indices.to(from.device()));
  std::vector<std::int64_t> sizes = from.sizes().vec();
  sizes[0] = indices.numel();
  torch::Tensor out = context.empty(sizes, from.scalar_type());
  return torch::index_select_out(out, from, 0, indices);
}

torch::Tensor tensor_of(std::span<const std::int64_t> indices) {
  return torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), torch::kLong);
}

}  // namespace

TensorDataset::TensorDataset(torch::Tensor data, torch::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  require_rows(data_, "data", rows_of(data_));
  require_rows(target_, "target", data_.size(0));
}

Example TensorDataset::get(std::int64_t index) const {
  require_indices({&index, 1}, size());
  return {data_[index], target_[index]};
}

Example TensorDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  require_indices(indices, size());
  const torch::Tensor numbers = tensor_of(indices);
  return {rows(data_, numbers, context), rows(target_, numbers, context)};
}

}  // namespace lockstep::data
