// Batches of a dataset: this rank's share of each epoch. Worker threads can make them ahead of the consumer.
//
//   DataLoader loader(Mnist("data", /*train=*/true), {.batch_size = 64, .shuffle = true});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (auto& [images, labels] : loader) { ... }  // another order in each epoch
//   }
//
// The batches are the same, in the same order, for any number of workers. For this the dataset must
// draw the randomness of a sample from the seed, the epoch and the sample's index, which the loader passes to it. (An
// iterable dataset is split over the workers: iterable_dataset.h.) A loop may be left at any moment; the next loop
// starts the next epoch. Use a loader from one thread, one loop at a time: an evaluation on the training data within a
// training loop needs a loader of its own. An older loop that goes on after the next loop has begun throws DataError
// (kUnsupported), unless it has had its last batch.
//
// DataLoader is for samples {data, target}. DataLoaderOf is for samples of any type, and finds the type by itself:
//
//   DataLoaderOf loader(Sentences("corpus"), {.batch_size = 64, .shuffle = true});
//   for (Sentence& batch : loader) { ... }
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/iterable_dataset.h"
#include "lockstep/data/samplers.h"
#include "lockstep/data/share.h"

namespace lockstep::data {

// For num_workers.
inline constexpr int kAutoWorkers = -1;

// S: a sample, B: a batch.
template <typename S, typename B = BatchOf<S>>
struct DataLoaderOptionsOf {
  // Samples in a batch of each rank (as in PyTorch): the global batch is world_size times as large.
  std::int64_t batch_size = 1;
  // When not 0: samples in a batch of each machine, instead of batch_size. The machine's processes share them; if the
  // samples do not divide evenly, the first processes have one sample more. All machines must have the same number of
  // processes.
  std::int64_t machine_batch_size = 0;

  // A new order in each epoch, the same on all ranks, from `seed` and the epoch. False: the dataset's order. The
  // dataset's own randomness (augmentation) uses the same seed. A program that makes a new loader for each
  // epoch must call set_epoch: every new loader begins with epoch 0. A warning says so.
  bool shuffle = false;
  std::uint64_t seed = 0;
  // Another order (samplers.h): weighted, by length, your own. Excludes shuffle.
  std::shared_ptr<const Sampler> sampler = {};
  // Whole batches (samplers.h), of sizes that may differ. The ranks take them in turns: rank r of W gets batches r,
  // r + W, ... Excludes batch_size, shuffle and sampler; drop_last and exact then concern batches, not samples.
  std::shared_ptr<const BatchSampler> batch_sampler = {};

  // These two say what happens if the samples do not divide evenly into ranks and batches.
  //   - By default some samples are repeated, so that all ranks have the same number, and the last batch is smaller.
  //   - drop_last leaves out the remaining samples and the smaller batch.
  //   - exact, for evaluation, gives each sample to one rank, once. The ranks' numbers of batches may differ by one.
  // If the dataset leaves out all samples of a batch (SkippedSample), exact leaves out the batch, so that no other
  // sample counts twice; without exact the next good sample takes the place of the batch. With an iterable dataset
  // drop_last leaves out the smaller last batch of each worker, and exact is an error.
  bool drop_last = false;
  bool exact = false;

  // Threads that make batches. 0: the consumer makes each batch when it asks for it. This is best if training uses all
  // cores, and for data in memory, such as Mnist, whose batches take less time to make than to hand over. Use workers
  // when samples are decoded or read from disk. kAutoWorkers: starts with one thread, adds a thread while the
  // consumer waits and a core is free, and removes a thread when fewer are enough; at most one for each core of this
  // process. Not for iterable datasets.
  int num_workers = 0;
  // When not 0: threads on each machine, instead of num_workers. The machine's processes share the threads; each
  // process has at least one.
  int machine_workers = 0;
  // How many batches of a worker may wait or be in the making; a worker with this many pauses. Memory: num_workers *
  // prefetch batches.
  int prefetch = 2;
  // When not 0: the longest time that the loop waits for one batch. After it the loop throws kTimeout, which names the
  // worker and the sample. The worker is not stopped: the loop can go on waiting, and the loader's destructor waits for
  // this sample. Needs workers.
  std::chrono::milliseconds timeout{0};

  // Puts batches into page-locked memory: copies from there to a GPU are faster and may be asynchronous. No effect
  // without a GPU, or another device for which LibTorch has page-locked memory.
  bool pin_memory = false;
  // The device of the batches. Workers copy them, through page-locked memory and on another stream, while the
  // consumer works on earlier batches; this takes num_workers * prefetch batches of device memory. Empty or the CPU: no
  // copy. A device without a number stands for the current device of the thread that makes the loader. A device that
  // does not exist is an error (kUnavailable).
  std::optional<torch::Device> device = {};

  // The ranks that share the dataset: the group's ranks and size count, as for one dimension of a DeviceMesh. Null: all
  // ranks. Only the constructor reads it. Excludes rank and world_size, and machine_batch_size.
  c10::intrusive_ptr<c10d::ProcessGroup> group = nullptr;
  // -1: from the group, otherwise from the process group that exists when the loader is made, otherwise from the
  // environment (share_of_process). Set both or neither.
  std::int64_t rank = -1;
  std::int64_t world_size = -1;

  // Makes a batch from its samples; several workers call it at once. Empty: the dataset's get_batch, or collate() of
  // the samples of an iterable dataset.
  CollateFunction<S, B> collate = {};
};
using DataLoaderOptions = DataLoaderOptionsOf<Example>;

class BatchPool;
class BatchWorkers;
class WorkerTuner;
struct CopiedBatch;
struct EpochPlan;
struct MadeBatch;

// A loader without the type of its batches.
class DataLoaderBase {
 public:
  // Joins the workers: waits for the batches that they are making.
  virtual ~DataLoaderBase();
  DataLoaderBase(const DataLoaderBase&) = delete;
  DataLoaderBase& operator=(const DataLoaderBase&) = delete;

  // Whether the dataset is iterable: it has no size, and no cursor.
  bool is_iterable() const { return !source_->size().has_value(); }
  // Batches of this rank in a whole epoch; with `exact`, batches that are left out count too. Throws DataError
  // (kUnsupported) for an iterable dataset.
  std::int64_t size() const;
  // Batches of this rank from the cursor of state() to the end of its epoch.
  std::int64_t batches_left() const;

  // Sets the epoch of the next begin(), for programs that count epochs themselves. A cursor from load_state stays if it
  // is in the same epoch. A loop that goes on after set_epoch or load_state still gives the rest of its own epoch, but
  // no longer moves the cursor.
  void set_epoch(std::int64_t epoch);
  // The epoch of the current loop; before the first begin(), and after set_epoch or load_state, the epoch of the next
  // loop.
  std::int64_t epoch() const { return sampler_.epoch(); }

  // The cursor after all batches that the consumer has got, including the one of the present loop body. After the last
  // batch it is the start of the next epoch. It may be loaded with any number of workers and ranks. With a
  // batch_sampler the cursor counts batches. Throws DataError (kUnsupported) for an iterable dataset.
  SamplerState state() const;
  // The next begin() continues at this cursor. See DistributedSampler::load_state.
  void load_state(const SamplerState& state);

  // The present number of threads that make batches; kAutoWorkers changes it.
  int workers() const;
  // Samples in a batch of this rank; 1 with a batch_sampler.
  std::int64_t batch_size() const { return options_.batch_size; }

 protected:
  // One loop over the loader.
  struct Loop {
    std::int64_t number = 0;
    bool ended = false;  // no batch follows
  };

  DataLoaderBase(const std::shared_ptr<const BatchSource>& source, DataLoaderOptions options);
  struct ShareOf {
    std::int64_t rank, world_size;
  };
  DataLoaderBase(const DataLoaderBase& other, ShareOf share);
  Loop begin_epoch();
  // Null at the end of the epoch.
  std::unique_ptr<AnyBatch> next_batch(Loop& loop);

 private:
  using Clock = std::chrono::steady_clock;
  struct Settings;

  DataLoaderBase(std::shared_ptr<const BatchSource> source, Settings settings);
  void require_cursor() const;
  bool ends_epoch() const;        // the consumer has got its last batch
  bool begins_by_itself() const;  // in epoch 0, of a random order, because nobody has said otherwise
  std::string order() const;
  EpochPlan plan_epoch() const;
  void plan_batches(EpochPlan& plan) const;
  void open_streams(EpochPlan& plan) const;
  std::int64_t batches_of(std::int64_t samples) const;
  MadeBatch next_made();
  MadeBatch next_tuned();
  void pass();
  struct NextGood {
    std::int64_t index;
    std::unique_ptr<AnyBatch> batch;  // of this sample alone
  };
  std::vector<bool> samples_of_order(std::int64_t epoch, std::int64_t dataset_size) const;
  // The first sample after `index`, in the dataset's order, that is in the epoch and that the dataset does not leave
  // out. `context`: of the sample that it replaces.
  NextGood next_good(std::int64_t index, const SampleContext& context, std::int64_t dataset_size) const;
  std::unique_ptr<AnyBatch> make_of(std::span<const std::int64_t> indices, const SampleContext& context,
                                    std::int64_t dataset_size) const;
  CopiedBatch make_batch(const EpochPlan& plan, std::int64_t number) const;

  std::shared_ptr<const BatchSource> source_;
  DataLoaderOptions options_;  // without `collate`, which source_ holds
  std::shared_ptr<BatchPool> pool_;
  DistributedSampler sampler_;                 // over samples; with a batch_sampler over batches
  bool started_ = false;                       // a loop over the sampler's epoch has begun and moves the cursor
  bool waits_ = false;                         // that loop still waits for its first batch, after a timeout
  bool told_epoch_ = false;                    // set_epoch or load_state was called
  std::int64_t loop_ = 0;                      // the number of the present loop
  std::shared_ptr<const EpochPlan> plan_;      // the present loop's
  std::int64_t taken_ = 0;                     // batches that the consumer has got
  bool failed_ = false;                        // the last batch could not be made; passed when the loop goes on
  std::unique_ptr<WorkerTuner> tuner_;         // null without kAutoWorkers
  std::optional<Clock::time_point> returned_;  // when the consumer got the previous batch
  std::chrono::nanoseconds busy_{};            // processor time of the process at that moment
  std::unique_ptr<BatchWorkers, LeakInForks>
      workers_;  // null without workers; last, so that threads end before the members that they use
};

// All options but collate, for DataLoaderBase.
template <typename S, typename B>
DataLoaderOptions without_collate(const DataLoaderOptionsOf<S, B>& options) {
  const auto& [batch_size, machine_batch_size, shuffle, seed, sampler, batch_sampler, drop_last, exact, num_workers,
               machine_workers, prefetch, timeout, pin_memory, device, group, rank, world_size, collate] = options;
  return {batch_size,  machine_batch_size,
          shuffle,     seed,
          sampler,     batch_sampler,
          drop_last,   exact,
          num_workers, machine_workers,
          prefetch,    timeout,
          pin_memory,  device,
          group,       rank,
          world_size,  {}};
}

// S: a sample, B: a batch.
template <typename S, typename B = BatchOf<S>>
class DataLoaderOf : public DataLoaderBase {
 public:
  class Iterator;
  using Options = DataLoaderOptionsOf<S, B>;

  // `dataset`: a DatasetOf<S>, an IterableDatasetOf<S>, or a shared_ptr to one. Owns or shares it, and starts the
  // workers. Throws DataError: kInvalidArgument; kUnavailable when the system refuses a thread or the device does not
  // exist.
  template <typename D>
  requires std::same_as<SampleOf<D>, S>
  explicit DataLoaderOf(D dataset, const Options& options = {})
      : DataLoaderOf(shared_dataset(std::move(dataset)), options, 0) {}

  // begin() starts the next epoch: first epoch 0, then one more each time; after load_state the rest of the loaded
  // epoch. It throws DataError if the process group is not the one for which the loader was made
  // (DistributedSampler::indices). Incrementing the iterator blocks until the next batch is ready, and throws when that
  // batch could not be made: SampleError with the sample's index for an error of the dataset, otherwise DataError.
  // Other exceptions are nested in these errors. The loop can go on with the next batch. begin() makes the first
  // increment. If this ends with kTimeout, the next begin() goes on waiting in the same epoch; if the first batch could
  // not be made, the next begin() starts the next epoch.
  Iterator begin() { return Iterator(*this, begin_epoch()); }
  std::default_sentinel_t end() const { return {}; }

  // Another loader of the same dataset, with the same options, that takes the share of rank `rank` of `world_size`. It
  // has workers and a cursor of its own, and begins at the start of this loader's epoch. Throws DataError: kUnsupported
  // with machine_batch_size, whose batch sizes belong to the ranks of this world; what the constructor throws.
  std::unique_ptr<DataLoaderOf> share(std::int64_t rank, std::int64_t world_size) const {
    return std::unique_ptr<DataLoaderOf>(new DataLoaderOf(*this, ShareOf{rank, world_size}));
  }

  // Throws for an iterable dataset, and for a dataset whose batches have another type than the loader's.
  const DatasetOf<S, B>& dataset() const {
    if (!dataset_) throw_wrong_source();
    return *dataset_;
  }

 private:
  DataLoaderOf(const DataLoaderOf& other, ShareOf share) : DataLoaderBase(other, share), dataset_(other.dataset_) {}
  template <typename D>
  DataLoaderOf(const std::shared_ptr<D>& dataset, const Options& options, int /*shared*/)
      : DataLoaderBase(make_source<S, B>(dataset, options.collate), without_collate(options)) {
    if constexpr (std::is_convertible_v<std::shared_ptr<D>, std::shared_ptr<const DatasetOf<S, B>>>) {
      dataset_ = dataset;
    }
  }

  std::shared_ptr<const DatasetOf<S, B>> dataset_;
};
using DataLoader = DataLoaderOf<Example>;

template <typename D>
DataLoaderOf(D) -> DataLoaderOf<SampleOf<D>, BatchTypeOf<D>>;
template <typename D>
DataLoaderOf(D, DataLoaderOptionsOf<SampleOf<D>, BatchTypeOf<D>>) -> DataLoaderOf<SampleOf<D>, BatchTypeOf<D>>;

// An input iterator for range-for. The consumer may change the batch that it refers to, or move from it.
template <typename S, typename B>
class DataLoaderOf<S, B>::Iterator {
 public:
  Iterator(DataLoaderOf& loader, Loop loop) : loader_(&loader), loop_(loop) { ++*this; }

  B& operator*() { return static_cast<BatchHolder<B>&>(*batch_).batch(); }
  B* operator->() { return &**this; }
  Iterator& operator++() {
    batch_.reset();  // its memory may be used again for the next batch
    batch_ = loader_->next_batch(loop_);
    more_ = batch_ != nullptr;
    return *this;
  }
  bool operator==(std::default_sentinel_t /*end*/) const { return !more_; }

 private:
  DataLoaderOf* loader_;
  Loop loop_;
  std::unique_ptr<AnyBatch> batch_;
  bool more_ = false;
};

extern template class DataLoaderOf<Example>;

}  // namespace lockstep::data
