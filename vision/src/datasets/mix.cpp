#include "lockstep/datasets/mix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

void require(bool right, const std::string& expected, const std::string& found) {
  if (right) return;
  throw DataError(ErrorCode::kInvalidArgument, fmt::format("mixup or cutmix: expected {}, found {}", expected, found));
}

std::string described(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// A target of each sample for each class, one-hot or already mixed, instead of the number of its class.
bool has_probabilities(const Example& batch) {
  return batch.target.defined() && batch.target.dim() == 2;
}

void check(const Example& batch, const MixOptions& options, std::int64_t dimensions) {
  const bool counted = options.num_classes == 0 && has_probabilities(batch);  // the targets have one for each class
  require(options.num_classes >= 1 || counted, "num_classes of at least 1", std::to_string(options.num_classes));
  require(options.alpha > 0.0 && std::isfinite(options.alpha), "a positive alpha", fmt::format("{}", options.alpha));
  require(batch.data.defined() && batch.data.is_floating_point() && batch.data.dim() >= dimensions,
          fmt::format("float data of at least {} dimensions", dimensions), described(batch.data));
  const std::int64_t samples = batch.data.size(0);
  if (has_probabilities(batch)) {
    require(batch.target.size(0) == samples && (counted || batch.target.size(1) == options.num_classes),
            fmt::format("targets [{}, {}], as the data and num_classes say", samples, options.num_classes),
            described(batch.target));
    return;
  }
  require(
      batch.target.defined() && batch.target.scalar_type() == torch::kLong && batch.target.dim() == 1 &&
          batch.target.size(0) == samples,
      fmt::format("int64 targets [{0}], or one-hot targets or probabilities [{0}, {1}]", samples, options.num_classes),
      described(batch.target));
  if (samples == 0) return;
  const std::int64_t low = batch.target.min().item<std::int64_t>();
  const std::int64_t high = batch.target.max().item<std::int64_t>();
  require(low >= 0 && high < options.num_classes, fmt::format("labels from 0 to {}", options.num_classes - 1),
          fmt::format("labels from {} to {}", low, high));
}

double beta(double alpha, CounterRandom& random) {
  const double first = random.gamma(alpha);
  const double second = random.gamma(alpha);
  return first + second > 0.0 ? first / (first + second) : 0.5;
}

torch::Tensor mixed_targets(const Example& batch, std::int64_t num_classes, double share) {
  torch::Tensor one_hot = has_probabilities(batch) ? batch.target : torch::one_hot(batch.target, num_classes);
  if (!one_hot.is_floating_point()) one_hot = one_hot.to(torch::kFloat);
  return one_hot * share + one_hot.roll(1, 0) * (1.0 - share);
}

}  // namespace

Example mixup(const Example& batch, const MixOptions& options, CounterRandom& random) {
  const torch::NoGradGuard no_grad;
  check(batch, options, 2);
  const double share = beta(options.alpha, random);
  return {batch.data * share + batch.data.roll(1, 0) * (1.0 - share), mixed_targets(batch, options.num_classes, share)};
}

Example cutmix(const Example& batch, const MixOptions& options, CounterRandom& random) {
  const torch::NoGradGuard no_grad;
  check(batch, options, 4);
  const double share = beta(options.alpha, random);
  const std::int64_t height = batch.data.size(-2);
  const std::int64_t width = batch.data.size(-1);
  const std::int64_t x = random.below(width);
  const std::int64_t y = random.below(height);
  const double half = 0.5 * std::sqrt(1.0 - share);
  const auto half_width = static_cast<std::int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<std::int64_t>(half * static_cast<double>(height));
  const std::int64_t left = std::max<std::int64_t>(x - half_width, 0);
  const std::int64_t top = std::max<std::int64_t>(y - half_height, 0);
  const std::int64_t right = std::min(x + half_width, width);
  const std::int64_t bottom = std::min(y + half_height, height);
  torch::Tensor data = batch.data.clone();
  data.slice(-2, top, bottom)
      .slice(-1, left, right)
      .copy_(batch.data.roll(1, 0).slice(-2, top, bottom).slice(-1, left, right));
  const double kept = 1.0 - static_cast<double>((right - left) * (bottom - top)) / static_cast<double>(width * height);
  return {data, mixed_targets(batch, options.num_classes, kept)};
}

}  // namespace lockstep::data
