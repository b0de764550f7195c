#include "lockstep/data/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fnv1a.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kMostWeights = std::int64_t{1} << 24;  // the limit of torch.multinomial

at::Generator generator_for(std::uint64_t seed, std::int64_t epoch) {
  return at::make_generator<at::CPUGeneratorImpl>(seed + static_cast<std::uint64_t>(epoch));
}

torch::Tensor permutation(std::int64_t size, at::Generator& generator) {
  return torch::randperm(size, generator, torch::TensorOptions().dtype(torch::kLong));
}

class Fingerprint {
 public:
  explicit Fingerprint(std::string_view kind) { hash_.add_bytes(kind); }
  void add(std::uint64_t word) { hash_.add_word(word); }
  void add(std::int64_t word) { add(static_cast<std::uint64_t>(word)); }
  void add(double value) {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    add(word);
  }
  template <typename T>
  void add_all(const std::vector<T>& values) {
    for (const T value : values) add(value);
  }
  // 0 stands for no sampler at all.
  std::uint64_t value() const { return hash_.value() == 0 ? 1 : hash_.value(); }

 private:
  Fnv1a hash_;
};

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
  Fingerprint fingerprint("weighted");
  fingerprint.add(num_samples);
  fingerprint.add(static_cast<std::int64_t>(replacement));
  fingerprint.add_all(weights);
  fingerprint_ = fingerprint.value();
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

LengthBucketSampler::LengthBucketSampler(std::vector<std::int64_t> lengths, LengthBucketOptions options)
    : lengths_(std::move(lengths)), options_(options) {
  if (options.group_size < 1 || options.groups_per_pool < 1) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("group_size and groups_per_pool must be at least 1, got {} and {}", options.group_size,
                                options.groups_per_pool));
  }
  Fingerprint fingerprint("length buckets");
  fingerprint.add(options.group_size);
  fingerprint.add(options.groups_per_pool);
  fingerprint.add_all(lengths_);
  fingerprint_ = fingerprint.value();
}

torch::Tensor LengthBucketSampler::sequence(std::uint64_t seed, std::int64_t epoch) const {
  at::Generator generator = generator_for(seed, epoch);
  const std::int64_t size = dataset_size();
  torch::Tensor sorted = permutation(size, generator);
  std::int64_t* order = sorted.mutable_data_ptr<std::int64_t>();
  const std::int64_t most =
      size / options_.groups_per_pool < options_.group_size ? size : options_.group_size * options_.groups_per_pool;
  for (std::int64_t begin = 0; begin < size; begin += most) {
    std::stable_sort(order + begin, order + std::min(begin + most, size), [&](std::int64_t a, std::int64_t b) {
      return lengths_[static_cast<std::size_t>(a)] < lengths_[static_cast<std::size_t>(b)];
    });
  }
  const std::int64_t groups = size / options_.group_size;  // full ones
  const torch::Tensor turns = permutation(groups, generator);
  torch::Tensor result = sorted.clone();  // the group that is not full stays last
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t* from = order + turns.const_data_ptr<std::int64_t>()[group] * options_.group_size;
    std::copy_n(from, options_.group_size, result.mutable_data_ptr<std::int64_t>() + group * options_.group_size);
  }
  return result;
}

}  // namespace lockstep::data
