// Samplers: the order in which an epoch goes through a dataset. DistributedSampler splits that order over the ranks, so
// every sampler here is distributed, and resumes in mid-epoch with any number of ranks.
//
//   auto sampler = std::make_shared<WeightedSampler>(balanced_weights(labels), labels.size());
//   DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
//
// A sampler of your own is one small class. Samplers are immutable: threads and loaders may share one. Constructors
// throw DataError (kInvalidArgument).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

class Sampler {
 public:
  virtual ~Sampler() = default;

  // The number of samples of its dataset.
  virtual std::int64_t dataset_size() const = 0;
  // Length of an epoch.
  virtual std::int64_t size() const { return dataset_size(); }
  // The epoch's dataset indices, int64 [size()]. They must depend on seed and epoch only, because every rank computes
  // them.
  virtual torch::Tensor sequence(std::uint64_t seed, std::int64_t epoch) const = 0;
  // A number that is equal for samplers with the same sequences, and in practice only for these, so that resuming with
  // another sampler is an error. Not 0.
  virtual std::uint64_t fingerprint() const = 0;
  // Whether an epoch may have a sample several times. Such a sample is augmented differently each time.
  virtual bool repeats() const { return false; }
};

// The batches of an epoch, where samples of a batch must fit together: pictures of one size, or sentences with a
// limited number of tokens. As torch.utils.data's batch_sampler. The ranks of a loader take the batches in turns.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  // The number of samples of its dataset.
  virtual std::int64_t dataset_size() const = 0;
  // Batches in an epoch, of all ranks together: the same in each epoch.
  virtual std::int64_t size() const = 0;
  // The dataset indices of each of the size() batches, at least one index each. They must depend on seed and epoch
  // only, because every rank computes them.
  virtual std::vector<std::vector<std::int64_t>> batches(std::uint64_t seed, std::int64_t epoch) const = 0;
  // As Sampler::fingerprint.
  virtual std::uint64_t fingerprint() const = 0;
};

enum class Replacement { kWith, kWithout };

// Draws samples in proportion to their weights: the sequence of torch.utils.data.WeightedRandomSampler with a generator
// that is seeded with seed + epoch.
class WeightedSampler : public Sampler {
 public:
  // An epoch has `num_samples` draws. Weights may have any sum; they are finite, not negative, and not all 0. Without
  // replacement at least `num_samples` weights must be positive. At most 2^24 weights, as in PyTorch.
  WeightedSampler(const std::vector<double>& weights, std::int64_t num_samples,
                  Replacement replacement = Replacement::kWith);

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

// Weights that make all classes equally likely: 1 / (number of samples with the same label). Labels are 0 or more.
std::vector<double> balanced_weights(std::span<const std::int64_t> labels);

}  // namespace lockstep::data
