// In which order an epoch goes through a dataset. Which rank gets which part of that order is DistributedSampler's
// business, so every sampler here is distributed, and resumes in mid-epoch on any number of ranks.
//
//   auto sampler = std::make_shared<WeightedSampler>(balanced_weights(labels), labels.size());
//   DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
//
// Your own is one small class. All are immutable: threads and loaders may share one. Errors: DataError
// (kInvalidArgument) from constructors.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

class Sampler {
 public:
  virtual ~Sampler() = default;

  // Samples of the dataset that it is for.
  virtual std::int64_t dataset_size() const = 0;
  // Length of an epoch.
  virtual std::int64_t size() const { return dataset_size(); }
  // The epoch's dataset indices, int64 [size()]: decided by seed and epoch alone, since every rank works it out for
  // itself.
  virtual torch::Tensor sequence(std::uint64_t seed, std::int64_t epoch) const = 0;
  // Equal when, and in practice only when, two samplers give the same sequences; guards resumption.
  virtual std::uint64_t fingerprint() const = 0;
  // Whether an epoch may hold a sample several times. Each time it is augmented differently.
  virtual bool repeats() const { return false; }
};

enum class Replacement { kWith, kWithout };

// Draws samples in proportion to their weights: torch.utils.data.WeightedRandomSampler, whose sequence it gives, for a
// generator seeded with seed + epoch.
class WeightedSampler : public Sampler {
 public:
  // An epoch is `num_samples` draws. Weights need no particular sum; they are finite, not negative, not all 0. Without
  // replacement there must be that many positive ones. At most 2^24 samples, as in PyTorch.
  WeightedSampler(std::vector<double> weights, std::int64_t num_samples, Replacement replacement = Replacement::kWith);

  std::int64_t dataset_size() const override { return weights_.numel(); }
  std::int64_t size() const override { return num_samples_; }
  torch::Tensor sequence(std::uint64_t seed, std::int64_t epoch) const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }
  bool repeats() const override { return replacement_ == Replacement::kWith; }

 private:
  torch::Tensor weights_;
  std::int64_t num_samples_;
  Replacement replacement_;
  std::uint64_t fingerprint_;
};

// Weights that make all classes equally likely: 1 / how many samples have the sample's label. Labels are 0 or more.
std::vector<double> balanced_weights(std::span<const std::int64_t> labels);

// Every sample once in a random order in which each class is spread evenly: any stretch of it, such as a global batch,
// holds each class in its share of the dataset. For n samples in a row, c classes and a class with the share p, the
// count is within 1 + c * p of n * p: at most 2 off when classes are equally frequent.
class StratifiedSampler : public Sampler {
 public:
  // The label of each sample of the dataset, 0 or more.
  explicit StratifiedSampler(std::vector<std::int64_t> labels);

  std::int64_t dataset_size() const override { return static_cast<std::int64_t>(labels_.size()); }
  torch::Tensor sequence(std::uint64_t seed, std::int64_t epoch) const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::int64_t> labels_;
  std::vector<std::int64_t> counts_;  // of each label
  std::uint64_t fingerprint_;
};

struct LengthBucketOptions {
  // Samples of similar length that stay together. Make it the global batch (batch_size times ranks), or a multiple of
  // the largest that the training may be resumed with.
  std::int64_t group_size = 256;
  // So many groups are formed out of one random set of samples: more make lengths more equal and the order less random.
  std::int64_t groups_per_pool = 100;
};

// Every sample once, in groups of similar length and in random order of the groups: little padding, and all ranks have
// about equally long samples at a time. Who is with whom differs in each epoch. A last group that is not full comes
// last.
class LengthBucketSampler : public Sampler {
 public:
  // The length of each sample of the dataset: tokens, frames, pixels.
  explicit LengthBucketSampler(std::vector<std::int64_t> lengths, LengthBucketOptions options = {});

  std::int64_t dataset_size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  torch::Tensor sequence(std::uint64_t seed, std::int64_t epoch) const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::int64_t> lengths_;
  LengthBucketOptions options_;
  std::uint64_t fingerprint_;
};

}  // namespace lockstep::data
