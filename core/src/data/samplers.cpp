#include "lockstep/data/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fnv1a.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kMostWeights = std::int64_t{1} << 24;  // the limit of torch.multinomial

at::Generator generator_for(std::uint64_t seed, std::int64_t epoch) {
  return at::make_generator<at::CPUGeneratorImpl>(seed + static_cast<std::uint64_t>(epoch));
}

std::vector<std::int64_t> count_labels(std::span<const std::int64_t> labels) {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= kMostWeights) {
      throw DataError(ErrorCode::kInvalidArgument,
                      fmt::format("label of sample {}: expected 0 to {}, found {}", i, kMostWeights - 1, labels[i]));
    }
    const auto label = static_cast<std::size_t>(labels[i]);
    if (label >= counts.size()) counts.resize(label + 1);
    ++counts[label];
  }
  return counts;
}

std::int64_t check_weights(const std::vector<double>& weights) {
  std::int64_t positive = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw DataError(ErrorCode::kInvalidArgument,
                      fmt::format("weight of sample {}: expected a finite number from 0, found {}", i, weights[i]));
    }
    positive += weights[i] > 0 ? 1 : 0;
  }
  return positive;
}

}  // namespace

WeightedSampler::WeightedSampler(const std::vector<double>& weights, std::int64_t num_samples, Replacement replacement)
    : num_samples_(num_samples), replacement_(replacement) {
  const auto size = static_cast<std::int64_t>(weights.size());
  if (size == 0 || size > kMostWeights) {
    throw DataError(ErrorCode::kInvalidArgument, fmt::format("expected 1 to {} weights, got {}", kMostWeights, size));
  }
  const std::int64_t positive = check_weights(weights);
  const std::int64_t most = replacement == Replacement::kWith ? INT64_MAX : positive;
  if (positive == 0 || num_samples < 1 || num_samples > most) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("cannot draw {} samples {} replacement from {} with a positive weight", num_samples,
                                replacement == Replacement::kWith ? "with" : "without", positive));
  }
  Fnv1a hash;
  hash.add_bytes("weighted");
  hash.add_word(static_cast<std::uint64_t>(num_samples));
  hash.add_word(static_cast<std::uint64_t>(replacement));
  for (const double weight : weights) hash.add_word(std::bit_cast<std::uint64_t>(weight));
  fingerprint_ = std::max<std::uint64_t>(hash.value(), 1);  // 0 stands for no sampler at all
  weights_ = torch::tensor(weights, torch::kDouble);
}

torch::Tensor WeightedSampler::sequence(std::uint64_t seed, std::int64_t epoch) const {
  return torch::multinomial(weights_, num_samples_, replacement_ == Replacement::kWith, generator_for(seed, epoch));
}

std::vector<double> balanced_weights(std::span<const std::int64_t> labels) {
  const std::vector<std::int64_t> counts = count_labels(labels);
  std::vector<double> weights(labels.size());
  std::transform(labels.begin(), labels.end(), weights.begin(), [&](std::int64_t label) {
    return 1.0 / static_cast<double>(counts[static_cast<std::size_t>(label)]);
  });
  return weights;
}

}  // namespace lockstep::data
