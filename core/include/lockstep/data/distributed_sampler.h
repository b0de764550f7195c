// Splits the samples of an epoch over the ranks: the index sequence of torch.utils.data.DistributedSampler for the same
// arguments, plus other orders, exact evaluation and a cursor.
//
// An epoch is one global sequence: a permutation of 0..size-1 drawn from `seed + epoch`, or 0..size-1 itself, or the
// order of a Sampler (samplers.h). Rank r of W takes the positions r, r + W, r + 2W, ... The cursor is a position in
// this sequence: the number of samples that all ranks together have consumed. When an epoch is resumed with any number
// of ranks, the ranks split the positions from the cursor to the end. So each sample is consumed exactly once in the
// epoch, except for samples that are repeated or dropped at its end. The size of the cursor does not depend on the
// dataset.
//
// Not thread-safe. Needs no communication: all ranks compute the same sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "lockstep/data/samplers.h"

namespace lockstep::data {

struct DistributedSamplerOptions {
  // The number of ranks that share the dataset, and the number of this rank. -1: from `group`, otherwise from the
  // process group that exists when the sampler is made, otherwise from the environment (share_of_process). Set both or
  // neither.
  std::int64_t num_replicas = -1;
  std::int64_t rank = -1;
  bool shuffle = true;     // a new order in each epoch; false: the dataset's order
  std::uint64_t seed = 0;  // equal on all ranks
  // When the size is not a multiple of num_replicas: by default the first samples of the sequence are repeated at its
  // end, so that all ranks have the same number. With drop_last the last samples are left out instead.
  bool drop_last = false;
  // For evaluation: nothing is repeated or left out. The ranks' numbers of samples may then differ by one (with
  // batch_sizes: by more), and be 0. Excludes drop_last.
  bool exact = false;
  // The order of the epoch; `shuffle` then has no effect. Null: as `shuffle` says.
  std::shared_ptr<const Sampler> order = {};
  // The batch size of each rank, if the sizes differ. A global batch has as many samples as the sum of the sizes, and
  // each rank gets its number of samples in a row. All ranks have the same number of batches in an epoch (except with
  // `exact`). A last, smaller global batch is split in the same proportions. Empty: rank r takes r, r + W, ...
  std::vector<std::int64_t> batch_sizes = {};
  // The ranks that share the dataset: its group ranks and size. Null: all ranks. Only the constructor reads `group`,
  // and does not keep it. Excludes num_replicas and rank.
  c10::intrusive_ptr<c10d::ProcessGroup> group = nullptr;
};

// The cursor, for checkpoints.
struct SamplerState {
  std::int64_t size = 0;  // samples in an epoch
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // samples of this epoch that all ranks together have consumed
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::uint64_t order = 0;  // the Sampler's fingerprint; 0: no Sampler

  bool operator==(const SamplerState&) const = default;
};

// Convert a state to one line of text, "size=60000 epoch=3 consumed=1280 seed=1234 shuffle=1" (and " order=N" with a
// Sampler), and back. Throws DataError (kCorrupt) for other text.
std::string to_string(const SamplerState& state);
SamplerState sampler_state_from_string(std::string_view text);

class Partition;

class DistributedSampler {
 public:
  // `size`: the number of samples of the dataset. Throws DataError (kInvalidArgument) for a negative size, a rank that
  // is not below num_replicas, one of these two without the other or with a group, a group without this process,
  // `exact` with drop_last, an order for another size, and batch_sizes that are not positive or not one for each rank.
  // Writes one line to the log that says which share it takes: at level info on rank 0 of the share, at debug on other
  // ranks.
  explicit DistributedSampler(std::int64_t size, DistributedSamplerOptions options = {});

  // This rank's dataset indices from the cursor to the end of the epoch, in order. O(size) time and memory. When rank
  // and num_replicas were -1, throws DataError (kMismatch) if they are no longer right because a process group was made
  // after the sampler.
  std::vector<std::int64_t> indices() const;
  // For orders that repeat samples: the random key of each index in indices(). The key differs each time that the epoch
  // has the same sample. Empty for other orders, where the index is enough. O(size).
  std::vector<std::int64_t> keys() const;
  // The share that this sampler takes.
  std::int64_t rank() const { return options_.rank; }
  std::int64_t num_replicas() const { return options_.num_replicas; }
  // The length of indices(), in O(1).
  std::int64_t remaining() const;
  // Samples of this rank in a whole epoch.
  std::int64_t samples_per_epoch() const;

  // Goes to the start of `epoch`. Without this call every pass has the same order, as in PyTorch; DataLoader calls it.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  // Notes that this rank, and each other rank, has consumed `samples` more samples.
  void advance(std::int64_t samples);

  // The present cursor: the same on all ranks that have consumed the same number of samples. At the end of an `exact`
  // epoch without batch_sizes keep the state of rank 0: other ranks may have one sample less.
  SamplerState state() const;
  // Continues at `state`, which may come from any number of ranks. Throws DataError (kMismatch) if `state` belongs to
  // another dataset size, order, seed or shuffle: samples could then be missed or repeated.
  void load_state(const SamplerState& state);

 private:
  void take_share();
  void check_share() const;
  Partition partition() const;
  torch::Tensor sequence() const;
  template <typename Visit>
  void for_each_position(Visit visit) const;

  std::int64_t dataset_size_;
  DistributedSamplerOptions options_;
  bool share_found_ = false;  // the options had neither rank nor group
  std::int64_t size_;         // samples in an epoch
  std::int64_t epoch_ = 0;
  std::int64_t start_ = 0;  // the position at which these ranks began, by the last set_epoch or load_state
  std::int64_t taken_ = 0;  // samples that this rank has consumed since then
};

}  // namespace lockstep::data
