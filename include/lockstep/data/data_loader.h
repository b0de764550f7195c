// Batches of a dataset: this rank's share of each epoch. Worker threads can make them ahead of the consumer.
//
//   DataLoader loader(Mnist("data", /*train=*/true), {.batch_size = 64, .shuffle = true});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (auto& [images, labels] : loader) { ... }  // another order in each epoch
//   }
//
// The batches are the same, in the same order (with kOrdered), for any number of workers, if the dataset draws the
// randomness of a sample from the seed, the epoch and the sample's index, which it is given. A loop may be left at any
// moment; the next one starts the next epoch. Use a loader from one thread, one loop at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/samplers.h"
#include "lockstep/data/share.h"

namespace lockstep::data {

// For num_workers.
inline constexpr int kAutoWorkers = -1;

enum class Delivery {
  kOrdered,    // batches come in the order of the epoch
  kFirstCome,  // the first batch that is ready: a slow batch delays no other, but the order differs from run to run
};

struct DataLoaderOptions {
  // Samples in a batch of each rank (as in PyTorch): the global batch is world_size times as large.
  std::int64_t batch_size = 1;
  // When not 0: samples in a batch of each machine, instead of batch_size. The machine's processes share them; if they
  // do not divide evenly, the first processes have one sample more. All machines must have the same number of
  // processes.
  std::int64_t machine_batch_size = 0;

  // A new order in each epoch, the same on all ranks, from `seed` and the epoch. False: the dataset's order. The
  // dataset's own randomness (augmentation) uses the same seed.
  bool shuffle = false;
  std::uint64_t seed = 0;
  // Another order (samplers.h): weighted, stratified, by length, your own. Excludes shuffle.
  std::shared_ptr<const Sampler> sampler = {};

  // When the samples do not divide evenly into ranks and batches: by default some samples are repeated, so that all
  // ranks have the same number, and the last batch is smaller. drop_last leaves out the rest and the smaller batch.
  // exact (for evaluation) gives each sample to one rank once; the numbers of batches may then differ by one.
  bool drop_last = false;
  bool exact = false;

  // Threads that make batches. 0: the consumer makes each batch when it asks for it. That is best for data in memory,
  // such as Mnist, whose batches take less time than handing them over, and when training uses all cores. Use workers
  // when samples are decoded or read from disk. kAutoWorkers: starts with one, adds one while the consumer waits and a
  // core is free, and removes one when fewer are enough; at most one for each core of this process.
  int num_workers = 0;
  // When not 0: threads on each machine, instead of num_workers. The machine's processes share them; each has at least
  // one.
  int machine_workers = 0;
  // The most batches that wait or are being made, for each worker; workers then pause. Memory: num_workers * prefetch
  // batches.
  int prefetch = 2;
  Delivery delivery = Delivery::kOrdered;

  // Puts batches into page-locked memory: copies from it to a GPU are faster and may be asynchronous. Without a GPU (or
  // another device that LibTorch has such memory for) it has no effect.
  bool pin_memory = false;
  // The device of the batches. Workers copy them, through page-locked memory and on another stream, while the
  // consumer works on earlier ones; this takes num_workers * prefetch batches of device memory. Empty or the CPU: no
  // copy. Without a number it is the device that is current in the thread that makes the loader. A device that does not
  // exist is an error (kUnavailable).
  std::optional<torch::Device> device = {};

  // The ranks that share the dataset: its group ranks and size, as with one dimension of a DeviceMesh. Null: all ranks.
  // Only the constructor looks at it. Excludes rank and world_size, and machine_batch_size.
  c10::intrusive_ptr<c10d::ProcessGroup> group = nullptr;
  // -1: from the group, otherwise from the process group that exists when the loader is made, otherwise from the
  // environment (share_of_process). Set both or neither.
  std::int64_t rank = -1;
  std::int64_t world_size = -1;

  // Makes a batch from its samples; several workers call it at once. Empty: the dataset's get_batch.
  std::function<Example(std::vector<Example>)> collate = {};
};

class BatchPool;
class BatchWorkers;
class WorkerTuner;
struct CopiedBatch;
struct EpochPlan;
struct MadeBatch;

class DataLoader {
 public:
  class Iterator;

  // Owns or shares the dataset, and starts the workers. Throws DataError: kInvalidArgument; kUnavailable when the
  // system refuses a thread or the device does not exist.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});
  template <std::derived_from<Dataset> D>
  explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), std::move(options)) {}
  // Joins the workers: waits for the batches that they are making.
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // begin() starts the next epoch: 0 at first, then one more each time; after load_state, the rest of that epoch. It
  // throws DataError when the process group is not the one for which the loader was made (DistributedSampler::indices).
  // Incrementing the iterator blocks until the next batch is ready, and throws when that batch could not be made:
  // SampleError with the sample's index for an error of the dataset, otherwise DataError. Other exceptions are nested
  // in these. The loop can go on with the next batch.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Batches of this rank in a whole epoch.
  std::int64_t size() const;
  const Dataset& dataset() const { return *dataset_; }

  // Sets the epoch of the next begin(), for programs that count epochs themselves. A cursor from load_state stays if it
  // is in the same epoch.
  void set_epoch(std::int64_t epoch);
  // The epoch of the current loop, or before the first begin() of the next one.
  std::int64_t epoch() const { return sampler_.epoch(); }

  // The cursor after all batches that the consumer has got, including the one of the present loop body. After the last
  // batch it is the start of the next epoch. It may be loaded with any number of workers and ranks. With kFirstCome it
  // is before the first batch that was not delivered: resuming there loses no sample, but repeats the batches that came
  // earlier than their turn, and the ranks' cursors may differ. Only kOrdered is exact.
  SamplerState state() const;
  // The next begin() continues at this cursor. See DistributedSampler::load_state.
  void load_state(const SamplerState& state);

  // Threads that make batches at present; kAutoWorkers changes it.
  int workers() const;
  // Samples in a batch of this rank.
  std::int64_t batch_size() const { return options_.batch_size; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Settings;

  DataLoader(std::shared_ptr<const Dataset> dataset, Settings settings);
  bool next(Example& batch);
  MadeBatch next_made();
  MadeBatch next_tuned();
  void pass(std::int64_t batch);
  CopiedBatch make_batch(const EpochPlan& plan, std::int64_t number) const;

  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::shared_ptr<BatchPool> pool_;
  DistributedSampler sampler_;
  bool started_ = false;                       // a loop over the sampler's epoch has begun
  std::shared_ptr<const EpochPlan> plan_;      // of the present loop
  std::int64_t taken_ = 0;                     // batches that the consumer has got
  std::int64_t passed_ = 0;                    // batches before the cursor: no gap among them
  std::set<std::int64_t> ahead_;               // taken batches behind a gap
  std::optional<std::int64_t> failed_;         // the last batch if it could not be made; passed when the loop goes on
  std::unique_ptr<WorkerTuner> tuner_;         // null without kAutoWorkers
  std::optional<Clock::time_point> returned_;  // when the consumer got the batch before
  std::chrono::nanoseconds busy_{};            // processor time of the process then
  std::unique_ptr<BatchWorkers, LeakInForks>
      workers_;  // null without workers; last, so that threads end before the members that they use
};

// An input iterator for range-for. The consumer may change the batch that it refers to, or move from it.
class DataLoader::Iterator {
 public:
  explicit Iterator(DataLoader& loader) : loader_(&loader) { ++*this; }

  Example& operator*() { return batch_; }
  Example* operator->() { return &batch_; }
  Iterator& operator++() {
    more_ = loader_->next(batch_);
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return !more_; }

 private:
  DataLoader* loader_;
  Example batch_;
  bool more_ = false;
};

}  // namespace lockstep::data
