#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "batch_workers.h"
#include "lockstep/data/errors.h"
#include "lockstep/launch/world.h"

namespace lockstep::data {
namespace {

DistributedSampler make_sampler(const Dataset* dataset, const DataLoaderOptions& options) {
  if (dataset == nullptr) throw DataError(ErrorCode::kInvalidArgument, "the loader needs a dataset, got null");
  if (options.batch_size < 1) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("batch_size must be at least 1, got {}", options.batch_size));
  }
  if (options.num_workers < 0 || options.prefetch < 1) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("num_workers must be >= 0 and prefetch >= 1, got {} and {}", options.num_workers,
                                options.prefetch));
  }
  if ((options.rank < 0) != (options.world_size < 0)) {
    throw DataError(ErrorCode::kInvalidArgument, fmt::format("set both rank and world_size or neither, got {} and {}",
                                                             options.rank, options.world_size));
  }
  const Share share =
      options.rank < 0 ? share_from(Environment::of_process()) : Share{options.rank, options.world_size};
  return DistributedSampler(dataset->size(), {.num_replicas = share.world_size,
                                              .rank = share.rank,
                                              .shuffle = options.shuffle,
                                              .seed = options.seed,
                                              .drop_last = options.drop_last,
                                              .exact = options.exact});
}

std::int64_t batches_of(std::int64_t samples, const DataLoaderOptions& options) {
  return options.drop_last ? samples / options.batch_size : (samples + options.batch_size - 1) / options.batch_size;
}

Example collate_samples(const Dataset& dataset, std::span<const std::int64_t> indices, const SampleContext& context,
                        const DataLoaderOptions& options) {
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    try {
      const Example sample = dataset.get_batch(indices.subspan(i, 1), context.only(i));
      examples.emplace_back(sample.data[0], sample.target[0]);
    } catch (const SampleError&) {
      throw;
    } catch (const std::exception& error) {
      std::throw_with_nested(SampleError(indices[i], error.what()));
    }
  }
  return options.collate(std::move(examples));
}

Example pinned(Example batch) {
  if (batch.data.defined()) batch.data = batch.data.pin_memory();
  if (batch.target.defined()) batch.target = batch.target.pin_memory();
  return batch;
}

}  // namespace

Share share_from(const Environment& environment) {
  const Result<launch::World> world = launch::resolve_world({}, environment);
  if (!world.ok()) throw DataError(world.status().code(), world.status().message());
  return {world.value().rank, world.value().world_size};
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)), sampler_(make_sampler(dataset_.get(), options_)) {
  options_.pin_memory = options_.pin_memory && torch::cuda::is_available();
  if (options_.num_workers == 0) return;
  workers_ = std::make_unique<BatchWorkers>(
      options_.num_workers, std::int64_t{options_.num_workers} * options_.prefetch,
      [this](const EpochPlan& plan, std::int64_t batch) { return make_batch(plan, batch); });
}

DataLoader::~DataLoader() = default;

DataLoader::Iterator DataLoader::begin() {
  if (started_) sampler_.set_epoch(sampler_.epoch() + 1);
  started_ = true;
  next_batch_ = 0;
  batches_ = batches_of(sampler_.remaining(), options_);
  plan_ = std::make_shared<const EpochPlan>(EpochPlan{sampler_.epoch(), sampler_.indices()});
  if (workers_) workers_->start(plan_, batches_);
  return Iterator(*this);
}

bool DataLoader::next(Example& batch) {
  if (next_batch_ == batches_) return false;
  const std::int64_t samples = std::min(options_.batch_size, sampler_.remaining());
  batch = workers_ ? workers_->next() : make_batch(*plan_, next_batch_);
  ++next_batch_;
  sampler_.advance(samples);
  return true;
}

Example DataLoader::make_batch(const EpochPlan& plan, std::int64_t batch_number) const {
  const torch::NoGradGuard no_grad;
  const auto size = static_cast<std::size_t>(options_.batch_size);
  const std::size_t first = static_cast<std::size_t>(batch_number) * size;
  const std::span<const std::int64_t> indices =
      std::span(plan.indices).subspan(first, std::min(size, plan.indices.size() - first));
  const SampleContext context{options_.seed, plan.epoch};
  try {
    Example batch = options_.collate ? collate_samples(*dataset_, indices, context, options_)
                                     : dataset_->get_batch(indices, context);
    return options_.pin_memory ? pinned(std::move(batch)) : batch;
  } catch (const DataError&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(ErrorCode::kCorrupt, fmt::format("a batch of {} samples, the first of them {}: {}",
                                                                      indices.size(), indices.front(), error.what())));
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
  if (started_ && next_batch_ == batches_) {
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
