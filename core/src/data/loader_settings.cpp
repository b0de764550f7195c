#include "loader_settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "batch_memory.h"
#include "launch/process/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

void require(bool right, const std::string& message) {
  if (!right) throw DataError(ErrorCode::kInvalidArgument, message);
}

void check_sizes(const DataLoaderOptions& options) {
  require(options.batch_size >= 1, fmt::format("batch_size must be at least 1, got {}", options.batch_size));
  require(options.machine_batch_size >= 0 && options.machine_workers >= 0,
          fmt::format("machine_batch_size and machine_workers must be >= 0, got {} and {}", options.machine_batch_size,
                      options.machine_workers));
  require(options.machine_batch_size == 0 || options.batch_size == 1,
          fmt::format("set batch_size (of a rank) or machine_batch_size, not both, got {} and {}", options.batch_size,
                      options.machine_batch_size));
  require(options.machine_workers == 0 || options.num_workers == 0,
          fmt::format("set num_workers (of a rank) or machine_workers, not both, got {} and {}", options.num_workers,
                      options.machine_workers));
  require(options.num_workers >= kAutoWorkers && options.prefetch >= 1,
          fmt::format("num_workers must be >= 0 or kAutoWorkers, and prefetch >= 1, got {} and {}", options.num_workers,
                      options.prefetch));
  // Far longer ones do not fit the clock, and would be over at once.
  require(options.timeout.count() >= 0 && options.timeout <= std::chrono::hours(24 * 365),
          fmt::format("timeout must be from 0 (none) to one year, got {} ms", options.timeout.count()));
  require(options.timeout.count() == 0 || options.num_workers != 0 || options.machine_workers != 0,
          "a timeout needs workers: without them the consumer makes the batches itself");
}

void check_order(const DataLoaderOptions& options) {
  require(!options.shuffle || !options.sampler, "the sampler decides the order: give a sampler or shuffle, not both");
  require((options.rank < 0) == (options.world_size < 0),
          fmt::format("set both rank and world_size or neither, got {} and {}", options.rank, options.world_size));
  if (!options.batch_sampler) return;
  require(options.batch_size == 1 && options.machine_batch_size == 0 && !options.shuffle && !options.sampler,
          "batch_sampler decides the batches: it excludes batch_size, machine_batch_size, shuffle and sampler");
}

void check_source(const BatchSource& source, const DataLoaderOptions& options) {
  if (!source.size()) {
    require(!options.shuffle && !options.sampler && !options.batch_sampler && !options.exact,
            "an iterable dataset has an order of its own: shuffle, sampler, batch_sampler and exact are for datasets "
            "with a size");
    require(options.num_workers != kAutoWorkers,
            "an iterable dataset is split over its workers, so their number cannot change: set num_workers");
    require(
        options.machine_workers == 0,
        "an iterable dataset is split over the workers of all ranks, of which each rank needs as many: set num_workers "
        "instead of machine_workers");
  } else if (options.batch_sampler) {
    require(options.batch_sampler->dataset_size() == *source.size(),
            fmt::format("the batch_sampler was made for {} samples, but the dataset has {}",
                        options.batch_sampler->dataset_size(), *source.size()));
  }
  const bool moves = options.pin_memory || !options.device.value_or(torch::kCPU).is_cpu();
  require(source.holds_tensors() || !moves,
          "device and pin_memory need tensors, and the loader finds none in batches of this type: list those of a "
          "struct with fields() (collate.h)");
}

// The numbers of the batches, in order.
class BatchOrder : public Sampler {
 public:
  explicit BatchOrder(std::shared_ptr<const BatchSampler> sampler) : sampler_(std::move(sampler)) {}
  std::int64_t dataset_size() const override { return sampler_->size(); }
  torch::Tensor sequence(std::uint64_t /*seed*/, std::int64_t /*epoch*/) const override {
    return torch::arange(sampler_->size(), torch::kLong);
  }
  std::uint64_t fingerprint() const override { return sampler_->fingerprint(); }

 private:
  std::shared_ptr<const BatchSampler> sampler_;
};

}  // namespace

DataLoaderBase::Settings::Settings(const BatchSource& source, DataLoaderOptions given) : options(std::move(given)) {
  check_sizes(options);
  check_order(options);
  check_source(source, options);
  const bool told = options.rank >= 0;
  const Share share = told ? Share{options.rank, options.world_size} : share_in_group(options.group);
  // Without a rank the sampler finds the same share itself, and notices when it is no longer right.
  DistributedSamplerOptions sampling{.num_replicas = options.world_size,
                                     .rank = options.rank,
                                     .shuffle = options.shuffle,
                                     .seed = options.seed,
                                     .drop_last = options.drop_last,
                                     .exact = options.exact,
                                     .order = options.sampler,
                                     .group = options.group};
  take_machine_shares(share, sampling);
  options.group.reset();
  std::int64_t size = source.size().value_or(0);
  if (options.batch_sampler) {
    size = options.batch_sampler->size();
    sampling.order = std::make_shared<const BatchOrder>(options.batch_sampler);
  }
  sampler = std::make_unique<DistributedSampler>(size, std::move(sampling));
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const auto allowed = static_cast<int>(launch::allowed_cores().size());
  cores = cores_of_process(share, allowed == 0 ? online : allowed, online, launch::cgroup_cores());
  options.device = usable_device(options.device.value_or(torch::kCPU));
  options.pin_memory = (options.pin_memory || !options.device->is_cpu()) && has_page_locked_memory();
}

void DataLoaderBase::Settings::take_machine_shares(const Share& share, DistributedSamplerOptions& sampling) {
  require(options.group == nullptr || options.machine_batch_size == 0,
          "machine_batch_size is split over all processes of a machine: with a group set batch_size");
  require(options.rank < 0 || (options.machine_batch_size == 0 && options.machine_workers == 0),
          "machine_batch_size and machine_workers follow the process group or the launcher's variables: leave "
          "rank and world_size out, or set batch_size and num_workers of this rank");
  if (options.machine_batch_size != 0) {
    std::vector<std::int64_t> batches = batches_of_ranks(share, options.machine_batch_size);
    options.batch_size = batches[static_cast<std::size_t>(share.rank)];
    if (options.machine_batch_size % share.local_world_size != 0) sampling.batch_sizes = std::move(batches);
  }
  if (options.machine_workers != 0) options.num_workers = workers_of_process(share, options.machine_workers);
}

std::vector<std::vector<std::int64_t>> checked_batches(const BatchSampler& sampler, std::uint64_t seed,
                                                       std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> batches = sampler.batches(seed, epoch);
  require(
      static_cast<std::int64_t>(batches.size()) == sampler.size(),
      fmt::format("the batch_sampler must give {} batches in each epoch, as its size() says; in epoch {} it gave {}",
                  sampler.size(), epoch, batches.size()));
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    require(!batches[batch].empty(), fmt::format("batch {} of the batch_sampler is empty", batch));
    for (const std::int64_t index : batches[batch]) {
      require(index >= 0 && index < sampler.dataset_size(),
              fmt::format("batch {} of the batch_sampler: expected indices from 0 to {}, found {}", batch,
                          sampler.dataset_size() - 1, index));
    }
  }
  return batches;
}

GivenOrders& GivenOrders::of_process() {
  static auto& orders = *new GivenOrders;
  return orders;
}

void GivenOrders::add(const std::string& order) {
  if (!origin_.is_this_process()) return;  // a fork may have a lock that nobody releases
  MutexLock lock(mutex_);
  warned_.try_emplace(order, false);
}

void GivenOrders::warn_if_given(const std::string& order) {
  if (!origin_.is_this_process()) return;
  {
    MutexLock lock(mutex_);
    const auto given = warned_.find(order);
    if (given == warned_.end() || std::exchange(given->second, true)) return;
  }
  log::warning(
      fmt::format("a loader begins with the order of epoch 0 again ({}), which an earlier loader has given to its "
                  "end. If it is made anew for each epoch, all epochs have the same order: make one loader for all "
                  "epochs, or call set_epoch",
                  order));
}

std::int64_t part_of(std::int64_t total, std::int64_t parts, std::int64_t index) {
  return total / parts + (index < total % parts ? 1 : 0);
}

std::vector<std::int64_t> batches_of_ranks(const Share& share, std::int64_t machine_batch) {
  const std::int64_t local = share.local_world_size;
  if (machine_batch < local) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("machine_batch_size {} is too small for the {} processes of this machine: each needs at "
                    "least one sample",
                    machine_batch, local));
  }
  const bool alike = share.nodes * local == share.world_size && share.rank % local == share.local_rank;
  if (!alike) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("machine_batch_size needs the same number of processes on each machine, numbered machine by "
                    "machine; found {} processes on {} machines, {} of them on this one (rank {}, local "
                    "rank {}). Set batch_size on each rank instead",
                    share.world_size, share.nodes, local, share.rank, share.local_rank));
  }
  std::vector<std::int64_t> batches(static_cast<std::size_t>(share.world_size));
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    batches[rank] = part_of(machine_batch, local, static_cast<std::int64_t>(rank) % local);
  }
  return batches;
}

int workers_of_process(const Share& share, int machine_workers) {
  return std::max(1, static_cast<int>(part_of(machine_workers, share.local_world_size, share.local_rank)));
}

int cores_of_process(const Share& share, int allowed, int online, std::optional<double> limit) {
  const bool split = share.local_world_size <= 1 || allowed < online;
  const auto cores = split ? allowed : static_cast<int>(part_of(allowed, share.local_world_size, share.local_rank));
  const double paid = limit.value_or(online) / static_cast<double>(std::max<std::int64_t>(share.local_world_size, 1));
  return std::max(1, limit ? std::min(cores, static_cast<int>(std::ceil(paid))) : cores);
}

}  // namespace lockstep::data
