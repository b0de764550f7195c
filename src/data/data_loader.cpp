#include "lockstep/data/data_loader.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "batch_pool.h"
#include "batch_workers.h"
#include "exception_text.h"
#include "launch/cores.h"
#include "lockstep/data/errors.h"
#include "machine_share.h"
#include "worker_tuner.h"

namespace lockstep::data {
namespace {

std::int64_t batches_of(std::int64_t samples, const DataLoaderOptions& options) {
  return options.drop_last ? samples / options.batch_size : (samples + options.batch_size - 1) / options.batch_size;
}

void check(const Dataset* dataset, const DataLoaderOptions& options) {
  const auto require = [](bool right, const std::string& message) {
    if (!right) throw DataError(ErrorCode::kInvalidArgument, message);
  };
  require(dataset != nullptr, "the loader needs a dataset, got null");
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
  require(!options.shuffle || !options.sampler, "the sampler decides the order: give a sampler or shuffle, not both");
  require((options.rank < 0) == (options.world_size < 0),
          fmt::format("set both rank and world_size or neither, got {} and {}", options.rank, options.world_size));
}

Example collate_samples(const Dataset& dataset, std::span<const std::int64_t> indices, const SampleContext& context,
                        const DataLoaderOptions& options) {
  const auto only_one = [](const torch::Tensor& batch) { return batch.defined() ? batch[0] : batch; };
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Example sample = dataset.get_batch(indices.subspan(i, 1), context.only(i));
    examples.emplace_back(only_one(sample.data), only_one(sample.target));
  }
  return options.collate(std::move(examples));
}

torch::Tensor pinned(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
}

std::chrono::nanoseconds processor_time() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto time = [](const timeval& value) {
    return std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  };
  return time(usage.ru_utime) + time(usage.ru_stime);
}

}  // namespace

// The options as they apply to this process.
struct DataLoader::Settings {
  Settings(const Dataset* dataset, DataLoaderOptions given) : options(std::move(given)) {
    check(dataset, options);
    const bool told = options.rank >= 0;
    const Share share = told ? Share{options.rank, options.world_size} : share_in_group(options.group);
    if (options.group != nullptr && options.machine_batch_size != 0) {
      throw DataError(ErrorCode::kInvalidArgument,
                      "machine_batch_size is split over all processes of a machine: with a group set batch_size");
    }
    if (told && (options.machine_batch_size != 0 || options.machine_workers != 0)) {
      throw DataError(
          ErrorCode::kInvalidArgument,
          "machine_batch_size and machine_workers follow the process group or the launcher's variables: leave "
          "rank and world_size out, or set batch_size and num_workers of this rank");
    }
    // Without a rank the sampler finds the same share itself, and notices when it is no longer right.
    DistributedSamplerOptions sampling{.num_replicas = options.world_size,
                                       .rank = options.rank,
                                       .shuffle = options.shuffle,
                                       .seed = options.seed,
                                       .drop_last = options.drop_last,
                                       .exact = options.exact,
                                       .order = options.sampler,
                                       .group = std::exchange(options.group, nullptr)};
    if (options.machine_batch_size != 0) {
      std::vector<std::int64_t> batches = batches_of_ranks(share, options.machine_batch_size);
      options.batch_size = batches[static_cast<std::size_t>(share.rank)];
      if (options.machine_batch_size % share.local_world_size != 0) sampling.batch_sizes = std::move(batches);
    }
    sampler = std::make_unique<DistributedSampler>(dataset->size(), std::move(sampling));
    if (options.machine_workers != 0) options.num_workers = workers_of_process(share, options.machine_workers);
    const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    const auto allowed = static_cast<int>(launch::allowed_cores().size());
    cores = cores_of_process(share, allowed == 0 ? online : allowed, online);
    options.device = usable_device(options.device.value_or(torch::kCPU));
    options.pin_memory = (options.pin_memory || !options.device->is_cpu()) && has_page_locked_memory();
  }

  DataLoaderOptions options;
  std::unique_ptr<DistributedSampler> sampler;
  int cores = 1;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : DataLoader(dataset, Settings(dataset.get(), std::move(options))) {}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, Settings settings)
    : dataset_(std::move(dataset)), options_(std::move(settings.options)), sampler_(std::move(*settings.sampler)) {
  if (options_.num_workers == kAutoWorkers) tuner_ = std::make_unique<WorkerTuner>(settings.cores);
  const int most = tuner_ ? tuner_->most() : options_.num_workers;
  // One for each batch that waits or is being made, and for two batches of the consumer.
  const auto blocks = static_cast<std::size_t>(most) * static_cast<std::size_t>(options_.prefetch + 1) + 2;
  // Data and targets have separate blocks.
  pool_ = BatchPool::make(options_.pin_memory ? HostMemory::kPinned : HostMemory::kPageable, 2 * blocks);
  if (most == 0) return;
  workers_.reset(
      new BatchWorkers(tuner_ ? tuner_->workers() : most, options_.prefetch, options_.delivery,
                       [this](const EpochPlan& plan, std::int64_t number) { return make_batch(plan, number); }));
}

DataLoader::~DataLoader() = default;

int DataLoader::workers() const {
  return tuner_ ? tuner_->workers() : options_.num_workers;
}

DataLoader::Iterator DataLoader::begin() {
  if (started_) sampler_.set_epoch(sampler_.epoch() + 1);
  started_ = true;
  taken_ = 0;
  passed_ = 0;
  ahead_.clear();
  failed_.reset();
  returned_.reset();
  plan_ = std::make_shared<const EpochPlan>(EpochPlan{.epoch = sampler_.epoch(),
                                                      .batches = batches_of(sampler_.remaining(), options_),
                                                      .indices = sampler_.indices(),
                                                      .keys = sampler_.keys()});
  if (workers_) workers_->start(plan_);
  return Iterator(*this);
}

bool DataLoader::next(Example& batch) {
  if (failed_) pass(*std::exchange(failed_, std::nullopt));
  if (taken_ == plan_->batches) return false;
  batch = {};  // its memory may be reused for the next batch
  MadeBatch made = next_made();
  ++taken_;
  if (made.error) {
    failed_ = made.number;
    std::rethrow_exception(made.error);
  }
  batch = finish_copy(std::move(made.copied));
  pass(made.number);
  return true;
}

MadeBatch DataLoader::next_made() {
  if (tuner_) return next_tuned();
  if (workers_) return workers_->next();
  MadeBatch made{.number = taken_};
  try {
    made.copied = make_batch(*plan_, taken_);
  } catch (...) {
    made.error = std::current_exception();
  }
  return made;
}

MadeBatch DataLoader::next_tuned() {
  const Clock::time_point asked = Clock::now();
  MadeBatch made = workers_->next();
  const Clock::time_point now = Clock::now();
  const std::chrono::nanoseconds busy = processor_time();
  if (returned_) {
    const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
    const int before = tuner_->workers();
    const int wanted = tuner_->note({.make = made.make_time,
                                     .step = asked - *returned_,
                                     .wait = now - asked,
                                     .busy_cores = seconds(busy - busy_) / std::max(1e-9, seconds(now - *returned_))});
    if (wanted != before && workers_->set_active(wanted) < wanted) tuner_->stay_below(wanted);
  }
  returned_ = now;
  busy_ = busy;
  return made;
}

// The cursor moves over batches without a gap: with kFirstCome, later ones wait in `ahead_`.
void DataLoader::pass(std::int64_t batch) {
  ahead_.insert(batch);
  while (!ahead_.empty() && *ahead_.begin() == passed_) {
    sampler_.advance(std::min(options_.batch_size, sampler_.remaining()));
    ahead_.erase(ahead_.begin());
    ++passed_;
  }
}

CopiedBatch DataLoader::make_batch(const EpochPlan& plan, std::int64_t number) const {
  const torch::NoGradGuard no_grad;
  const auto size = static_cast<std::size_t>(options_.batch_size);
  const std::size_t first = static_cast<std::size_t>(number) * size;
  const std::size_t count = std::min(size, plan.indices.size() - first);
  const auto indices = std::span(plan.indices).subspan(first, count);
  const SampleContext context{.seed = options_.seed,
                              .epoch = plan.epoch,
                              .keys = plan.keys.empty() ? indices : std::span(plan.keys).subspan(first, count),
                              .memory = pool_.get()};
  try {
    Example batch = options_.collate ? collate_samples(*dataset_, indices, context, options_)
                                     : dataset_->get_batch(indices, context);
    if (options_.pin_memory) batch = {pinned(batch.data), pinned(batch.target)};
    return start_copy(std::move(batch), *options_.device);
  } catch (const DataError&) {
    throw;
  } catch (...) {
    std::throw_with_nested(
        DataError(ErrorCode::kCorrupt, fmt::format("a batch of {} samples, the first of them {}: {}", indices.size(),
                                                   indices.front(), current_exception_text())));
  }
}

std::int64_t DataLoader::size() const {
  return batches_of(sampler_.samples_per_epoch(), options_);
}

void DataLoader::set_epoch(std::int64_t epoch) {
  if (started_ || epoch != sampler_.epoch()) sampler_.set_epoch(epoch);
  started_ = false;
}

SamplerState DataLoader::state() const {
  SamplerState state = sampler_.state();
  if (started_ && taken_ == plan_->batches && !failed_) {
    ++state.epoch;
    state.consumed = 0;
  }
  return state;
}

void DataLoader::load_state(const SamplerState& state) {
  sampler_.load_state(state);
  started_ = false;
}

}  // namespace lockstep::data
