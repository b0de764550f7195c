// Which samples of an epoch belong to which rank: the index sequence of torch.utils.data.DistributedSampler for the
// same arguments, plus other orders, exact evaluation and a cursor.
//
// An epoch is one global sequence: a permutation of 0..size-1 drawn from `seed + epoch`, or 0..size-1 itself, or what a
// Sampler (samplers.h) gives. Rank r of W takes the positions r, r + W, r + 2W, ... of it. The cursor is a position in
// that sequence: how many samples all ranks together have consumed. Whatever W is when an epoch goes on, the ranks then
// deal out the positions from the cursor to the end, so every sample is consumed exactly once in the epoch (but for
// padding or the dropped tail at its end), and the cursor is a few numbers however large the dataset is.
//
// Not thread-safe; needs no communication: ranks agree because they compute the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/samplers.h"

namespace lockstep::data {

struct DistributedSamplerOptions {
  // Ranks that share the dataset, and which of them this is. -1: those of the process group as it is when the sampler
  // is made, else from the environment (share_of_process). Say both or neither.
  std::int64_t num_replicas = -1;
  std::int64_t rank = -1;
  bool shuffle = true;     // a new order in each epoch; false: the dataset's order
  std::uint64_t seed = 0;  // equal on all ranks
  // When num_replicas does not divide the size: by default the first samples of the sequence are repeated at its end,
  // so that all ranks have the same number. With drop_last the tail is left out instead.
  bool drop_last = false;
  // For evaluation: nothing is repeated or left out, so that ranks may differ by one sample (and, with fewer samples
  // than ranks, have none). Excludes drop_last.
  bool exact = false;
  // The order of the epoch, instead of `shuffle`, which then has no meaning. Null: as `shuffle` says.
  std::shared_ptr<const Sampler> order = {};
  // When ranks have batches of different sizes: the size of each rank's. Of every global batch, which is as large as
  // their sum, a rank then gets that many samples in a row, and all ranks end an epoch with the same number of batches
  // (but for `exact`). A last, smaller global batch is split in the same proportions. Empty: as said above.
  std::vector<std::int64_t> batch_sizes = {};
};

// The cursor, as stored in checkpoints.
struct SamplerState {
  std::int64_t size = 0;  // of an epoch
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // samples of this epoch that all ranks together have consumed
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::uint64_t order = 0;  // the Sampler's fingerprint; 0: none

  bool operator==(const SamplerState&) const = default;
};

// One line of text, "size=60000 epoch=3 consumed=1280 seed=1234 shuffle=1" (and " order=N" with a Sampler), and back
// (DataError kCorrupt).
std::string to_string(const SamplerState& state);
SamplerState sampler_state_from_string(std::string_view text);

class Partition;

class DistributedSampler {
 public:
  // `size`: of the dataset. Throws DataError (kInvalidArgument) for a negative size, a rank outside of num_replicas,
  // one of these two without the other, exact with drop_last, an order for another size, batch sizes that are not one
  // per rank and positive.
  explicit DistributedSampler(std::int64_t size, DistributedSamplerOptions options = {});

  // This rank's dataset indices from the cursor to the end of the epoch, in order. O(size) time and memory. Throws
  // DataError (kMismatch) when the share was found out and is not this process's any more: a process group was made, or
  // another one, after the sampler.
  std::vector<std::int64_t> indices() const;
  // For orders that repeat samples: a number for each of indices(), different for each time that the epoch has the
  // sample, which its randomness is to be keyed by. Empty for other orders: the index is enough. O(size).
  std::vector<std::int64_t> keys() const;
  // How many these are, without making them.
  std::int64_t remaining() const;
  // How many this rank has in a whole epoch.
  std::int64_t samples_per_epoch() const;

  // Goes to the start of `epoch`. Without it every pass has the same order, as in PyTorch; DataLoader does it by
  // itself.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  // Says that this rank, and each of the others, has consumed `samples` more.
  void advance(std::int64_t samples);

  // Where the epoch stands, the same on all ranks that have consumed equally many. When ranks end an `exact` epoch with
  // one sample more or less, the state of rank 0 (which never has fewer) is the one to keep.
  SamplerState state() const;
  // Goes on from `state`, which may come from any world size. Throws DataError (kMismatch) when it belongs to a dataset
  // of another size, another seed or another shuffle, for which "exactly once" could not be kept.
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
  bool share_found_ = false;  // nobody said it
  std::int64_t size_;         // of an epoch
  std::int64_t epoch_ = 0;
  std::int64_t start_ = 0;  // global position from which the present world deals
  std::int64_t taken_ = 0;  // samples this rank has consumed since
};

}  // namespace lockstep::data
