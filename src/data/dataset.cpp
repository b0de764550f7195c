#include "lockstep/data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "exception_text.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

void require_equal(const torch::Tensor& first, const torch::Tensor& other, std::size_t position,
                   std::string_view part) {
  if (!first.defined() || !other.defined()) {
    throw DataError(ErrorCode::kMismatch, fmt::format("{} of the example at position {} in the batch is not defined",
                                                      part, first.defined() ? position : 0));
  }
  if (first.sizes() == other.sizes() && first.scalar_type() == other.scalar_type()) return;
  throw DataError(
      ErrorCode::kMismatch,
      fmt::format("{} at position {} in the batch is {} [{}], at position 0 it is {} [{}]: a batch needs equal "
                  "shapes and types; resize, pad or give the loader a collate function",
                  part, position, c10::toString(other.scalar_type()), fmt::join(other.sizes(), ", "),
                  c10::toString(first.scalar_type()), fmt::join(first.sizes(), ", ")));
}

// Like torch::stack, but into memory from the context.
torch::Tensor stack_into(const std::vector<torch::Tensor>& parts, const SampleContext& context) {
  const bool plain = parts[0].is_cpu() && parts[0].layout() == torch::kStrided;
  if (context.memory == nullptr || !plain) return torch::stack(parts);
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(parts.size())};
  sizes.insert(sizes.end(), parts[0].sizes().begin(), parts[0].sizes().end());
  torch::Tensor whole = context.empty(sizes, parts[0].scalar_type());
  return torch::stack_out(whole, parts);
}

}  // namespace

Example stack(const std::vector<Example>& examples, const SampleContext& context) {
  if (examples.empty()) throw DataError(ErrorCode::kInvalidArgument, "cannot stack a batch of no examples");
  std::vector<torch::Tensor> data;
  std::vector<torch::Tensor> targets;
  data.reserve(examples.size());
  targets.reserve(examples.size());
  for (std::size_t i = 0; i < examples.size(); ++i) {
    require_equal(examples[0].data, examples[i].data, i, "data");
    require_equal(examples[0].target, examples[i].target, i, "target");
    data.push_back(examples[i].data);
    targets.push_back(examples[i].target);
  }
  return {stack_into(data, context), stack_into(targets, context)};
}

Example Dataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (const std::int64_t index : indices) {
    try {
      examples.push_back(get(index));
    } catch (const SampleError&) {
      throw;
    } catch (...) {
      std::throw_with_nested(SampleError(index, current_exception_text()));
    }
  }
  return stack(examples, context);
}

}  // namespace lockstep::data
