// Batches of a dataset, this rank's share of each epoch, made in threads ahead of the consumer when asked.
//
//   DataLoader loader(Mnist("data", /*train=*/true), {.batch_size = 64, .shuffle = true});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (auto& [images, labels] : loader) { ... }  // another order in each epoch
//   }
//
// The batches are the same, in the same order, for any number of workers: the dataset is told seed and epoch, and draws
// what is random about a sample from these and the sample's index. A loop may be left at any moment; the next one
// starts the next epoch. The loader belongs to one consumer thread; one loop at a time.
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
  kFirstCome,  // whichever is ready first: one slow batch holds nobody up, and two runs differ in their order
};

struct DataLoaderOptions {
  // Samples a batch, on each rank (as in PyTorch): the global batch is world_size times as large.
  std::int64_t batch_size = 1;
  // When not 0: samples a batch on each machine, instead of batch_size. Its processes share them; when their number
  // does not divide it, the first ones have a sample more. Every machine must have the same number of processes.
  std::int64_t machine_batch_size = 0;

  // A new order in each epoch, equal on all ranks and decided by `seed` and the epoch. False: the dataset's order. The
  // seed is also that of the dataset's own randomness (augmentation).
  bool shuffle = false;
  std::uint64_t seed = 0;
  // Another order (samplers.h): weighted, stratified, by length, your own. Excludes shuffle.
  std::shared_ptr<const Sampler> sampler = {};

  // When ranks or batches do not divide the samples: by default some samples are repeated so that all ranks have
  // equally many, and the last batch is smaller. drop_last leaves out the surplus and the smaller batch; exact (for
  // evaluation) gives each sample to one rank once, so that ranks may have a batch more or less.
  bool drop_last = false;
  bool exact = false;

  // Threads that make batches. 0: the consumer makes each when it asks for it; best for data in memory, such as Mnist,
  // whose batches take less time than handing them over, and on machines whose cores are all training already. Use some
  // when samples are decoded or read from disk. kAutoWorkers: starts with one, adds one while the consumer waits and a
  // core is free, takes one away when fewer would do; at most one for each core of this process.
  int num_workers = 0;
  // When not 0: threads on each machine, instead of num_workers. Its processes share them, at least one each.
  int machine_workers = 0;
  // Finished batches that wait per worker, at most; workers then pause. Memory: num_workers * prefetch batches.
  int prefetch = 2;
  Delivery delivery = Delivery::kOrdered;

  // Puts batches into page-locked memory, from which copies to a GPU are faster and may be asynchronous. Without a GPU
  // it does nothing.
  bool pin_memory = false;
  // Batches come on this device. They are copied by the workers, through page-locked memory and on a stream of their
  // own, while the consumer works on earlier ones; memory of the device: num_workers * prefetch batches. Nothing, or
  // the CPU: they stay where they are made. A device that is not there is an error (kUnavailable).
  std::optional<torch::Device> device = {};

  // -1: of the process group as it is when the loader is made, else from the environment (share_of_process). Say both
  // or neither.
  std::int64_t rank = -1;
  std::int64_t world_size = -1;

  // Makes the batch from its samples; called by workers in parallel. Empty: the dataset's get_batch.
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

  // Takes the dataset over (or shares it). Starts the workers. Throws DataError (kInvalidArgument; kUnavailable when
  // the system refuses a thread).
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});
  template <std::derived_from<Dataset> D>
  explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), std::move(options)) {}
  // Joins the workers; waits for the samples they are at.
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // begin() starts the next epoch (and throws, see DistributedSampler::indices, when the process group is not the one
  // for which the loader was made): 0 at first, then one more each time; after load_state, the rest of that epoch.
  // Advancing the iterator blocks until the next batch is there, and throws what a worker threw for it: SampleError
  // with the sample's index for a dataset's error, DataError otherwise, each with the original exception nested. The
  // loop can go on with the batch after it.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Batches of this rank in a whole epoch.
  std::int64_t size() const;
  const Dataset& dataset() const { return *dataset_; }

  // The epoch of the next begin(), for programs that count epochs themselves. Keeps a cursor set by load_state when it
  // is the same epoch.
  void set_epoch(std::int64_t epoch);
  // The epoch of the current or, before the first begin(), of the next loop.
  std::int64_t epoch() const { return sampler_.epoch(); }

  // The cursor behind the batches that the consumer has got, including the one that its loop body has at hand. After
  // the last batch it is the start of the next epoch. Valid at any number of workers and ranks. With kFirstCome it
  // stands before the first batch that has not been delivered: going on from there loses nothing, but repeats the few
  // batches that overtook it, and ranks may be at different ones; only ordered delivery is exact.
  SamplerState state() const;
  // The next begin() goes on from there. See DistributedSampler::load_state.
  void load_state(const SamplerState& state);

  // Threads that make batches now: changes with kAutoWorkers.
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
  bool started_ = false;                       // the sampler's epoch has been begun
  std::shared_ptr<const EpochPlan> plan_;      // of the loop at hand
  std::int64_t taken_ = 0;                     // batches of it that the consumer has got
  std::int64_t passed_ = 0;                    // those among them that come first in the epoch
  std::set<std::int64_t> ahead_;               // those that overtook others
  std::optional<std::int64_t> failed_;         // the last one, when it could not be made: passed when the loop goes on
  std::unique_ptr<WorkerTuner> tuner_;         // null without kAutoWorkers
  std::optional<Clock::time_point> returned_;  // when the consumer got the batch before
  std::chrono::nanoseconds busy_{};            // processor time of the process then
  std::unique_ptr<BatchWorkers, LeakInForks>
      workers_;  // null without workers; last, so that threads end before what they use
};

// Of the kind that range-for needs: one pass, dereferenced to the batch at hand, which the consumer may change or move
// from.
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
