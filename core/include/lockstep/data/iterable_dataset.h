// Datasets that give samples one after another, without numbers: logs, archives, sockets, generators. As
// torch.utils.data.IterableDataset.
//
//   class Lines : public lockstep::data::IterableDatasetOf<std::string> {
//    public:
//     lockstep::data::SampleStream<std::string> iterate(const lockstep::data::StreamShare& share) const override {
//       auto file = std::make_shared<std::ifstream>("corpus.txt");
//       const auto next = [file]() -> std::optional<std::string> {
//         std::string line;
//         return std::getline(*file, line) ? std::optional(line) : std::nullopt;
//       };
//       return lockstep::data::take_turns<std::string>(next, share);
//     }
//   };
//
// Every worker of every rank iterates over its own share of the samples, and makes batches of its own samples only. A
// loader without workers counts as one worker. The batches of a rank's workers come in turns, as in PyTorch: worker 0,
// 1, ..., 0, 1, ...; workers whose share has ended are left out. So the batches depend on the number of workers.
//
// The shares may have different lengths, so the ranks may have different numbers of batches. No rank knows the other
// ranks' numbers. Inside of DistributedDataParallel's `join`, training goes on to the end of the longest share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/data/collate.h"

namespace lockstep::data {

// Which part of the samples one worker gives in one epoch. The parts are numbered from 0 to parts() - 1 over all
// workers of all ranks; all of them together are the dataset.
struct StreamShare {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t worker = 0;
  std::int64_t num_workers = 1;  // of each rank; the same on all ranks
  // For random orders: equal on all workers of all ranks.
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;

  std::int64_t part() const { return rank * num_workers + worker; }
  std::int64_t parts() const { return world_size * num_workers; }
};

// Gives one sample for each call, and nullopt at the end. Only one thread at a time calls it. An exception is the
// error of the batch in which the sample would have been; the next call continues.
template <typename S>
using SampleStream = std::function<std::optional<S>()>;

// S: a sample. B: a batch, by default what collate() makes.
template <typename S, typename B = BatchOf<S>>
class IterableDatasetOf {
 public:
  using SampleType = S;
  using BatchType = B;

  virtual ~IterableDatasetOf() = default;

  // A new stream of the samples of `share`: each sample of the dataset belongs to exactly one share. Called at the
  // begin of each epoch, in the thread of the worker; several threads call it at once. The loader does not divide
  // the samples: a dataset that ignores the share gives every sample to every worker. Give each share whole files, if
  // there are several; take_turns() is for sources that cannot be split.
  virtual SampleStream<S> iterate(const StreamShare& share) const = 0;
};

using IterableDataset = IterableDatasetOf<Example>;

// The samples of `all` that belong to the share: part p of n takes samples p, p + n, p + 2n, ... Makes all samples, and
// drops the samples of other shares. Ignores an error in a sample of another share, because that share reports it.
template <typename S>
SampleStream<S> take_turns(SampleStream<S> all, const StreamShare& share) {
  return [all = std::move(all), next = share.part(), at = std::int64_t{0},
          parts = share.parts()]() mutable -> std::optional<S> {
    for (;;) {
      const bool mine = at++ == next;
      if (mine) next += parts;
      std::optional<S> sample;
      try {
        sample = all();
      } catch (...) {
        if (mine) throw;
        continue;
      }
      if (mine || !sample) return sample;
    }
  };
}

}  // namespace lockstep::data
