// MicroBatchLoader: the samples of each micro-batch of a step, on whichever rank asks for them.
//
//   MicroBatchLoader loader(dataset, {.batch_size = 64, .shuffle = true});
//   auto& batch = loader.next(micro_batch);
//
// Micro-batch m of n takes the samples that rank m of n ranks takes with a DataLoader of the same options. After the
// last batch of an epoch the next epoch begins. All micro-batches go through an epoch together, so one cursor is enough
// for all of them, whatever the number of ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/data/data_loader.h"
#include "lockstep/elastic/elastic_training.h"

namespace lockstep {

template <typename S, typename B = data::BatchOf<S>>
class MicroBatchLoader {
 public:
  using Loader = data::DataLoaderOf<S, B>;
  using Options = data::DataLoaderOptionsOf<S, B>;

  // `batch_size` is the size of a micro-batch. Throws DataError: kInvalidArgument for options that name a share (group,
  // rank, world_size, machine_batch_size, machine_workers) or would give micro-batches different numbers of batches
  // (exact), and for an iterable dataset, which has no cursor.
  template <typename D>
  explicit MicroBatchLoader(D dataset, Options options = {}) {
    const bool shares = options.group != nullptr || options.rank >= 0 || options.world_size >= 0;
    if (shares || options.machine_batch_size != 0 || options.machine_workers != 0 || options.exact) {
      throw data::DataError(
          ErrorCode::kInvalidArgument,
          "MicroBatchLoader: group, rank, world_size, machine_batch_size, machine_workers and exact must not be set; "
          "the micro-batches are the shares, and all have the same number of batches");
    }
    auto shared = data::shared_dataset(std::move(dataset));
    Options alone = of_micro_batch(options, 0, 1);
    alone.num_workers = 0;
    alone.timeout = std::chrono::milliseconds(0);  // needs workers
    cursor_ = Loader(shared, alone).state();
    make_ = [shared, options = std::move(options)](int number, int count) {
      return std::make_unique<Loader>(shared, of_micro_batch(options, number, count));
    };
  }
  // Takes the samples of `loader` from its cursor on. `loader` must outlive this object. Throws DataError:
  // kInvalidArgument for an iterable dataset.
  explicit MicroBatchLoader(const Loader& loader)
      : make_([&loader](int number, int count) { return loader.share(number, count); }) {
    if (loader.is_iterable())
      throw data::DataError(ErrorCode::kInvalidArgument,
                            "MicroBatchLoader: expected a dataset with a size: others have no cursor");
    cursor_ = loader.state();
  }

  // The next batch of this micro-batch. Call it equally often in each step for each micro-batch of this rank. The first
  // call for a micro-batch makes a loader, with its workers. The reference is valid until the next call for the same
  // micro-batch, or load_state().
  B& next(const MicroBatch& micro_batch) {
    Share& share = shares_[micro_batch.number];
    if (share.loader == nullptr) {
      share.loader = make_(micro_batch.number, micro_batch.count);
      share.loader->load_state(cursor_);
    } else if (share.batch) {
      ++*share.batch;
    }
    if (share.batch && *share.batch == std::default_sentinel) share.batch.reset();
    if (!share.batch) share.batch.emplace(share.loader->begin());
    if (*share.batch == std::default_sentinel) {
      throw data::DataError(ErrorCode::kInvalidArgument, "MicroBatchLoader: an epoch has no batch");
    }
    return **share.batch;
  }

  // The cursor after the batches that were taken. Throws DataError (kMismatch) in the middle of a step, when
  // micro-batches of this rank have taken different numbers of batches.
  data::SamplerState state() const {
    std::optional<data::SamplerState> all;
    for (const auto& [number, share] : shares_) {
      const data::SamplerState one = share.loader->state();
      if (all && *all != one) {
        throw data::DataError(ErrorCode::kMismatch,
                              "MicroBatchLoader: the micro-batches of this rank have taken different numbers of "
                              "batches; a step takes the same number for each of them");
      }
      all = one;
    }
    return all.value_or(cursor_);
  }
  // The next batches are those from this cursor on.
  void load_state(const data::SamplerState& state) {
    shares_.clear();
    cursor_ = state;
  }

 private:
  struct Share {
    std::unique_ptr<Loader> loader;
    std::optional<typename Loader::Iterator> batch;  // ends before the loader does
  };

  static Options of_micro_batch(Options options, int number, int count) {
    options.rank = number;
    options.world_size = count;
    return options;
  }

  std::function<std::unique_ptr<Loader>(int number, int count)> make_;
  data::SamplerState cursor_;
  std::map<int, Share> shares_;  // by micro-batch; only what this rank has asked for
};

template <typename D>
MicroBatchLoader(D) -> MicroBatchLoader<data::SampleOf<D>, data::BatchTypeOf<D>>;
template <typename D>
MicroBatchLoader(D, data::DataLoaderOptionsOf<data::SampleOf<D>, data::BatchTypeOf<D>>)
    -> MicroBatchLoader<data::SampleOf<D>, data::BatchTypeOf<D>>;

}  // namespace lockstep
