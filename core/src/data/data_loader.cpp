#include "lockstep/data/data_loader.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/arithmetic.h"
#include "batch_memory.h"
#include "batch_workers.h"
#include "data/exception_text.h"
#include "flight/recorder.h"
#include "loader_settings.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/errors.h"
#include "worker_tuner.h"

namespace lockstep::data {

template class DataLoaderOf<Example>;

namespace {

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

// Whether the dataset leaves out all samples of the batch.
bool is_left_out(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const SamplesToReplace&) {
    return false;  // no sample was found for their places
  } catch (const SkippedSample&) {
    return true;
  } catch (...) {
    return false;
  }
}

DataLoaderOptions options_of_share(DataLoaderOptions options, std::int64_t rank, std::int64_t world_size) {
  if (options.machine_batch_size != 0)
    throw DataError(ErrorCode::kUnsupported,
                    "a loader with machine_batch_size has no share of another rank: set batch_size, that of a rank");
  options.machine_workers = 0;  // num_workers has this process's part of them
  options.group.reset();
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

}  // namespace

DataLoaderBase::DataLoaderBase(const DataLoaderBase& other, ShareOf share)
    : DataLoaderBase(other.source_, options_of_share(other.options_, share.rank, share.world_size)) {
  set_epoch(other.epoch());
}

DataLoaderBase::DataLoaderBase(const std::shared_ptr<const BatchSource>& source, DataLoaderOptions options)
    : DataLoaderBase(source, Settings(*source, std::move(options))) {}

DataLoaderBase::DataLoaderBase(std::shared_ptr<const BatchSource> source, Settings settings)
    : source_(std::move(source)), options_(std::move(settings.options)), sampler_(std::move(*settings.sampler)) {
  if (options_.num_workers == kAutoWorkers) tuner_ = std::make_unique<WorkerTuner>(settings.cores);
  const int most = tuner_ ? tuner_->most() : options_.num_workers;
  // One for each batch that waits or is being made, and for two batches of the consumer.
  const auto blocks = static_cast<std::size_t>(most) * static_cast<std::size_t>(options_.prefetch + 1) + 2;
  // Data and targets have separate blocks.
  pool_ = BatchPool::make(options_.pin_memory ? HostMemory::kPinned : HostMemory::kPageable, 2 * blocks);
  if (most == 0) return;
  workers_.reset(new BatchWorkers(
      {.threads = tuner_ ? tuner_->workers() : most, .prefetch = options_.prefetch, .timeout = options_.timeout},
      [this](const EpochPlan& plan, std::int64_t number) { return make_batch(plan, number); }));
}

DataLoaderBase::~DataLoaderBase() {
  if (begins_by_itself() && ends_epoch() && plan_->batches > 1) GivenOrders::of_process().add(order());
}

bool DataLoaderBase::begins_by_itself() const {
  const bool is_random = options_.shuffle || options_.sampler || options_.batch_sampler;
  return is_random && !told_epoch_ && sampler_.epoch() == 0 && sampler_.rank() == 0;  // one rank speaks for all
}

std::string DataLoaderBase::order() const {
  const SamplerState state = sampler_.state();
  return fmt::format("{} samples, seed {}{}", state.size, state.seed,
                     state.order == 0 ? "" : fmt::format(", sampler {:x}", state.order));
}

int DataLoaderBase::workers() const {
  return tuner_ ? tuner_->workers() : options_.num_workers;
}

std::int64_t DataLoaderBase::batches_of(std::int64_t samples) const {
  const std::int64_t size = options_.batch_size;  // with a batch sampler 1: its samples are batches
  return options_.drop_last ? samples / size : ceil_divide(samples, size);
}

EpochPlan DataLoaderBase::plan_epoch() const {
  EpochPlan plan{.epoch = sampler_.epoch(),
                 .batches = batches_of(sampler_.remaining()),
                 .batch_size = options_.batch_size,
                 .dataset_size = source_->size().value_or(0),
                 .indices = sampler_.indices()};
  if (is_iterable()) {
    open_streams(plan);
  } else if (options_.batch_sampler) {
    plan_batches(plan);
  } else {
    plan.keys = sampler_.keys();
  }
  return plan;
}

void DataLoaderBase::open_streams(EpochPlan& plan) const {
  plan.batches = EpochPlan::kUnknown;
  const int streams = std::max(1, options_.num_workers);
  for (int worker = 0; worker < streams; ++worker) {
    const StreamShare share{.rank = sampler_.rank(),
                            .world_size = sampler_.num_replicas(),
                            .worker = worker,
                            .num_workers = streams,
                            .seed = options_.seed,
                            .epoch = plan.epoch};
    plan.streams.push_back(source_->open(share, options_.batch_size, options_.drop_last));
  }
}

// Replaces the numbers of this rank's batches by their samples.
void DataLoaderBase::plan_batches(EpochPlan& plan) const {
  const auto batches = checked_batches(*options_.batch_sampler, options_.seed, plan.epoch);
  // The key of a sample that the epoch has several times differs each time.
  std::vector<std::int64_t> next_key(static_cast<std::size_t>(plan.dataset_size));
  std::iota(next_key.begin(), next_key.end(), 0);
  std::vector<std::vector<std::int64_t>> keys;
  for (const std::vector<std::int64_t>& batch : batches) {
    std::vector<std::int64_t>& mine = keys.emplace_back();
    for (const std::int64_t index : batch) {
      std::int64_t& key = next_key[static_cast<std::size_t>(index)];
      mine.push_back(key);
      key += plan.dataset_size;
    }
  }
  for (const std::int64_t number : std::exchange(plan.indices, {})) {
    const auto batch = static_cast<std::size_t>(number);
    plan.indices.insert(plan.indices.end(), batches[batch].begin(), batches[batch].end());
    plan.keys.insert(plan.keys.end(), keys[batch].begin(), keys[batch].end());
    plan.ends.push_back(plan.indices.size());
  }
}

DataLoaderBase::Loop DataLoaderBase::begin_epoch() {
  if (waits_) return {.number = loop_};
  if (started_) sampler_.set_epoch(sampler_.epoch() + 1);
  if (begins_by_itself()) GivenOrders::of_process().warn_if_given(order());
  started_ = false;  // what throws below begins no loop: the next call tries the same epoch again
  auto plan = std::make_shared<const EpochPlan>(plan_epoch());
  if (workers_) workers_->start(plan);
  plan_ = std::move(plan);
  started_ = true;
  waits_ = plan_->batches > 0;
  taken_ = 0;
  failed_ = false;
  returned_.reset();
  return {.number = ++loop_};
}

std::unique_ptr<AnyBatch> DataLoaderBase::next_batch(Loop& loop) {
  if (loop.number != loop_) {
    if (loop.ended) return nullptr;
    throw DataError(ErrorCode::kUnsupported,
                    fmt::format("a loop over a loader cannot go on, because another loop over the same loader, in "
                                "epoch {}, began meanwhile. Give the other loop a loader of its own, for instance one "
                                "for an evaluation within an epoch",
                                plan_->epoch));
  }
  if (std::exchange(failed_, false)) pass();
  const flight::InputTime time;
  while (taken_ != plan_->batches) {
    MadeBatch made = next_made();
    waits_ = false;
    if (made.is_end()) break;
    loop.ended = ++taken_ == plan_->batches;
    if (options_.exact && is_left_out(made.error)) {
      pass();
      continue;
    }
    if (made.error) {
      failed_ = true;
      std::rethrow_exception(made.error);
    }
    std::unique_ptr<AnyBatch> batch = finish_copy(std::move(made.copied));
    pass();
    return batch;
  }
  loop.ended = true;
  return nullptr;
}

MadeBatch DataLoaderBase::next_made() {
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

MadeBatch DataLoaderBase::next_tuned() {
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

// Moves the cursor behind a batch. After set_epoch or load_state the cursor belongs to the next loop.
void DataLoaderBase::pass() {
  if (is_iterable() || !started_) return;
  sampler_.advance(std::min(options_.batch_size, sampler_.remaining()));
}

// Where the dataset wants samples to be replaced, makes the batch again with others in their places. Of nothing but
// samples that the dataset leaves out, the next good sample makes the batch: ranks stay in step. With `exact` it would
// count twice, and ranks need not have equally many batches: next_batch() goes on to the next one.
std::unique_ptr<AnyBatch> DataLoaderBase::make_of(std::span<const std::int64_t> indices, const SampleContext& context,
                                                  std::int64_t dataset_size) const {
  std::vector<std::int64_t> others(indices.begin(), indices.end());
  try {
    return source_->make(indices, context);
  } catch (const SamplesToReplace& error) {
    bool found = false;
    for (std::size_t position = 0; position < indices.size(); ++position) {
      const std::vector<std::int64_t>& wanted = error.indices();
      if (std::find(wanted.begin(), wanted.end(), indices[position]) == wanted.end()) continue;
      others[position] = next_good(indices[position], context.only(position), dataset_size).index;
      found = true;
    }
    if (!found) throw;  // a view of the program's own has not translated the indices
  } catch (const SkippedSample&) {
    if (options_.exact) throw;
    return next_good(indices.front(), context.only(0), dataset_size).batch;
  }
  return source_->make(others, context);
}

DataLoaderBase::NextGood DataLoaderBase::next_good(std::int64_t index, const SampleContext& context,
                                                   std::int64_t dataset_size) const {
  constexpr std::int64_t kMostTries = 64;  // with so many that are left out in a row, something else is wrong
  const std::vector<bool> in_order = samples_of_order(context.epoch, dataset_size);
  std::string reason;
  std::int64_t tries = 0;
  for (std::int64_t step = 1; step <= dataset_size && tries < kMostTries; ++step) {
    const std::int64_t next = (index + step) % dataset_size;
    if (!in_order.empty() && !in_order[static_cast<std::size_t>(next)]) continue;
    ++tries;
    try {
      return {next, source_->make({&next, 1}, context)};
    } catch (const SkippedSample& error) {
      reason = error.what();
    }
  }
  throw SampleError(index, fmt::format("it is left out, and the samples after it too; the last reason: {}", reason));
}

// Whether the epoch has each sample: a sampler may leave out a part of the dataset, for instance the test samples.
// Empty: it has all. O(size), and only needed where a sample is left out.
std::vector<bool> DataLoaderBase::samples_of_order(std::int64_t epoch, std::int64_t dataset_size) const {
  std::vector<bool> has;
  if (!options_.sampler && !options_.batch_sampler) return has;
  has.resize(static_cast<std::size_t>(dataset_size));
  if (options_.sampler) {
    const torch::Tensor order = options_.sampler->sequence(options_.seed, epoch).contiguous();
    const std::int64_t* index_at = order.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < order.numel(); ++i) has[static_cast<std::size_t>(index_at[i])] = true;
    return has;
  }
  for (const std::vector<std::int64_t>& batch : options_.batch_sampler->batches(options_.seed, epoch)) {
    for (const std::int64_t index : batch) has[static_cast<std::size_t>(index)] = true;
  }
  return has;
}

CopiedBatch DataLoaderBase::make_batch(const EpochPlan& plan, std::int64_t number) const {
  const torch::NoGradGuard no_grad;
  SampleContext context{.seed = options_.seed, .epoch = plan.epoch, .memory = pool_.get()};
  std::span<const std::int64_t> indices;
  if (plan.streams.empty()) {
    indices = plan.indices_of(number);
    context.keys = plan.keys_of(number);
  }
  try {
    std::unique_ptr<AnyBatch> batch =
        plan.streams.empty() ? make_of(indices, context, plan.dataset_size)
                             : plan.streams[static_cast<std::size_t>(number) % plan.streams.size()]->next(context);
    if (batch == nullptr) return {};
    if (options_.pin_memory) batch->visit([](torch::Tensor& tensor) { tensor = pinned(tensor); });
    return start_copy(std::move(batch), *options_.device);
  } catch (const DataError&) {
    throw;
  } catch (...) {
    const std::string which =
        plan.streams.empty()
            ? fmt::format("a batch of {} samples, the first of them {}", indices.size(), indices.front())
            : fmt::format("a batch of worker {}", static_cast<std::size_t>(number) % plan.streams.size());
    std::throw_with_nested(DataError(ErrorCode::kCorrupt, which + ": " + current_exception_text()));
  }
}

void DataLoaderBase::require_cursor() const {
  if (!is_iterable()) return;
  throw DataError(ErrorCode::kUnsupported,
                  "the loader of an iterable dataset knows neither how many batches there are nor where in them it is: "
                  "count batches in the program, and save the position in the dataset");
}

std::int64_t DataLoaderBase::size() const {
  require_cursor();
  return batches_of(sampler_.samples_per_epoch());
}

std::int64_t DataLoaderBase::batches_left() const {
  require_cursor();
  return ends_epoch() ? size() : batches_of(sampler_.remaining());
}

void DataLoaderBase::set_epoch(std::int64_t epoch) {
  if (started_ || epoch != sampler_.epoch()) sampler_.set_epoch(epoch);
  told_epoch_ = true;
  started_ = false;
  waits_ = false;
}

bool DataLoaderBase::ends_epoch() const {
  return started_ && taken_ == plan_->batches && !failed_;
}

SamplerState DataLoaderBase::state() const {
  require_cursor();
  SamplerState state = sampler_.state();
  if (ends_epoch()) {
    ++state.epoch;
    state.consumed = 0;
  }
  return state;
}

void DataLoaderBase::load_state(const SamplerState& state) {
  require_cursor();
  sampler_.load_state(state);
  told_epoch_ = true;
  started_ = false;
  waits_ = false;
}

}  // namespace lockstep::data
