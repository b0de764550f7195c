#include "lockstep/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "lockstep/base/log.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/share.h"
#include "lockstep/launch/world.h"
#include "partition.h"

namespace lockstep::data {
namespace {

// Takes the number of `name` from the front of "a=1 b=2".
template <typename T>
T take_number(std::string_view& rest, std::string_view name, std::string_view text) {
  const auto fail = [&]() -> DataError {
    return DataError(ErrorCode::kCorrupt,
                     fmt::format("a sampler state must read \"size=N epoch=N consumed=N seed=N shuffle=0|1\", found "
                                 "\"{}\" (at \"{}\")",
                                 text, name));
  };
  if (!rest.starts_with(name) || !rest.substr(name.size()).starts_with('=')) throw fail();
  rest.remove_prefix(name.size() + 1);
  T value{};
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || value < T{0}) throw fail();
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  return value;
}

}  // namespace

std::string to_string(const SamplerState& state) {
  const std::string order = state.order == 0 ? "" : fmt::format(" order={}", state.order);
  return fmt::format("size={} epoch={} consumed={} seed={} shuffle={}{}", state.size, state.epoch, state.consumed,
                     state.seed, state.shuffle ? 1 : 0, order);
}

SamplerState sampler_state_from_string(std::string_view text) {
  std::string_view rest = text;
  SamplerState state;
  state.size = take_number<std::int64_t>(rest, "size", text);
  state.epoch = take_number<std::int64_t>(rest, "epoch", text);
  state.consumed = take_number<std::int64_t>(rest, "consumed", text);
  state.seed = take_number<std::uint64_t>(rest, "seed", text);
  state.shuffle = take_number<std::uint64_t>(rest, "shuffle", text) != 0;
  if (!rest.empty()) state.order = take_number<std::uint64_t>(rest, "order", text);
  return state;
}

DistributedSampler::DistributedSampler(std::int64_t size, DistributedSamplerOptions options)
    : dataset_size_(size), options_(std::move(options)), size_(options_.order ? options_.order->size() : size) {
  const auto wrong = [](const std::string& what) { return DataError(ErrorCode::kInvalidArgument, what); };
  if ((options_.rank < 0) != (options_.num_replicas < 0)) {
    throw wrong(
        fmt::format("set both rank and num_replicas or neither, got {} and {}", options_.rank, options_.num_replicas));
  }
  if (options_.group != nullptr && options_.rank >= 0) {
    throw wrong(fmt::format("give a group or rank {} of {}, not both", options_.rank, options_.num_replicas));
  }
  take_share();
  const std::int64_t ranks = options_.num_replicas;
  if (size < 0) throw wrong(fmt::format("dataset size must be >= 0, got {}", size));
  if (ranks < 1) throw wrong(fmt::format("the number of ranks must be at least 1, got {}", ranks));
  if (options_.rank < 0 || options_.rank >= ranks) {
    throw wrong(fmt::format("rank must be in 0..{} for {} ranks, got {}", ranks - 1, ranks, options_.rank));
  }
  if (options_.exact && options_.drop_last) {
    throw wrong("exact (every sample once) and drop_last exclude each other: choose one");
  }
  if (options_.order && options_.order->dataset_size() != size) {
    throw wrong(fmt::format("the sampler was made for {} samples, but the dataset has {}",
                            options_.order->dataset_size(), size));
  }
  const std::vector<std::int64_t>& batches = options_.batch_sizes;
  if (batches.empty()) return;
  if (static_cast<std::int64_t>(batches.size()) != ranks || *std::min_element(batches.begin(), batches.end()) < 1) {
    throw wrong(fmt::format("expected a batch size of at least 1 for each of {} ranks, got [{}]", ranks,
                            fmt::join(batches, ", ")));
  }
}

void DistributedSampler::take_share() {
  std::string source = "as its options say";
  if (options_.rank < 0) {
    share_found_ = options_.group == nullptr;
    Share share = share_in_group(options_.group);
    options_.rank = share.rank;
    options_.num_replicas = share.world_size;
    options_.group.reset();
    source = std::move(share.source);
  }
  // An iterable dataset has no number of samples.
  const std::string samples = dataset_size_ == 0 ? "" : fmt::format(" of {} samples", dataset_size_);
  const std::string line = fmt::format("a sampler or loader{} takes the share of rank {} of {}: {}", samples,
                                       options_.rank, options_.num_replicas, source);
  // One line when all is well. Ranks that wrongly take the same share are all rank 0 of it.
  options_.rank == 0 ? log::info(line) : log::debug(line);
}

// Without this check ranks would silently train on the same samples.
void DistributedSampler::check_share() const {
  const std::optional<launch::World> world = launch::joined_world();
  if (!share_found_ || !world) return;
  if (world->rank == options_.rank && world->world_size == options_.num_replicas) return;
  throw DataError(
      ErrorCode::kMismatch,
      fmt::format("this sampler or loader was made when this process was rank {} of {}; in the process group "
                  "it is rank {} of {}: make it after init_process_group, or set rank and number of ranks",
                  options_.rank, options_.num_replicas, world->rank, world->world_size));
}

Partition DistributedSampler::partition() const {
  Remainder remainder = options_.drop_last ? Remainder::kDrop : Remainder::kRepeat;
  if (options_.exact) remainder = Remainder::kExact;
  return Partition(options_.rank, options_.num_replicas, remainder, options_.batch_sizes);
}

std::int64_t DistributedSampler::remaining() const {
  return partition().count(size_ - start_) - taken_;
}

std::int64_t DistributedSampler::samples_per_epoch() const {
  return partition().count(size_);
}

// The tensor is undefined for the dataset's own order.
torch::Tensor DistributedSampler::sequence() const {
  if (options_.order) {
    torch::Tensor order = options_.order->sequence(options_.seed, epoch_).contiguous();
    const bool fits =
        order.scalar_type() == torch::kLong && order.dim() == 1 && order.numel() == size_ &&
        (size_ == 0 || (order.min().item<std::int64_t>() >= 0 && order.max().item<std::int64_t>() < dataset_size_));
    if (fits) return order;
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("the sampler must give {} int64 indices from 0 to {}; it gave {} [{}]{}", size_,
                                dataset_size_ - 1, c10::toString(order.scalar_type()), fmt::join(order.sizes(), ", "),
                                order.dim() == 1 && order.numel() == size_ ? ", with wrong type or values" : ""));
  }
  if (!options_.shuffle) return {};
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed + static_cast<std::uint64_t>(epoch_));
  return torch::randperm(size_, generator, torch::TensorOptions().dtype(torch::kLong));
}

// Visits this rank's remaining positions in the epoch's sequence, in order.
template <typename Visit>
void DistributedSampler::for_each_position(Visit visit) const {
  const Partition partition = this->partition();
  const std::int64_t left = size_ - start_;
  const std::int64_t count = partition.count(left);
  for (std::int64_t k = taken_; k < count; ++k) {
    visit((start_ + partition.position(k, left)) % size_);  // positions past the end repeat the first samples
  }
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  check_share();
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(remaining()));
  if (remaining() == 0) return result;
  const torch::Tensor order = sequence();
  const std::int64_t* index_at = order.defined() ? order.const_data_ptr<std::int64_t>() : nullptr;
  for_each_position(
      [&](std::int64_t position) { result.push_back(index_at != nullptr ? index_at[position] : position); });
  return result;
}

std::vector<std::int64_t> DistributedSampler::keys() const {
  std::vector<std::int64_t> result;
  if (!options_.order || !options_.order->repeats() || remaining() == 0) return result;
  const torch::Tensor order = sequence();
  const std::int64_t* index_at = order.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> key_at(static_cast<std::size_t>(size_));
  std::vector<std::int64_t> next_key(static_cast<std::size_t>(dataset_size_));
  std::iota(next_key.begin(), next_key.end(), 0);
  for (std::int64_t position = 0; position < size_; ++position) {
    std::int64_t& key = next_key[static_cast<std::size_t>(index_at[position])];
    key_at[static_cast<std::size_t>(position)] = key;
    key += dataset_size_;
  }
  result.reserve(static_cast<std::size_t>(remaining()));
  for_each_position([&](std::int64_t position) { result.push_back(key_at[static_cast<std::size_t>(position)]); });
  return result;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw DataError(ErrorCode::kInvalidArgument, fmt::format("epoch must be >= 0, got {}", epoch));
  epoch_ = epoch;
  start_ = 0;
  taken_ = 0;
}

void DistributedSampler::advance(std::int64_t samples) {
  if (samples < 0 || samples > remaining()) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("cannot advance by {}: this rank has {} samples left in epoch {}", samples, remaining(), epoch_));
  }
  taken_ += samples;
}

SamplerState DistributedSampler::state() const {
  const std::int64_t consumed = start_ + partition().consumed(taken_, size_ - start_);
  const std::uint64_t order = options_.order ? options_.order->fingerprint() : 0;
  return {size_, epoch_, consumed, options_.seed, options_.shuffle, order};
}

void DistributedSampler::load_state(const SamplerState& state) {
  const auto mismatch = [](std::string_view what, auto saved, auto now) {
    return DataError(ErrorCode::kMismatch,
                     fmt::format("the saved sampler state has {} {}, this sampler {}: an epoch can only continue with "
                                 "the same data in the same order; use the same {}, or begin anew",
                                 what, saved, now, what));
  };
  const SamplerState mine = this->state();
  if (state.size != size_) throw mismatch("dataset size", state.size, size_);
  if (state.order != mine.order) throw mismatch("order (fingerprint)", state.order, mine.order);
  if (mine.order == 0 && state.shuffle != options_.shuffle) throw mismatch("shuffle", state.shuffle, options_.shuffle);
  if ((state.shuffle || mine.order != 0) && state.seed != options_.seed)
    throw mismatch("seed", state.seed, options_.seed);
  if (state.epoch < 0 || state.consumed < 0 || state.consumed > size_) {
    throw DataError(ErrorCode::kCorrupt, fmt::format("impossible sampler state: {}", to_string(state)));
  }
  epoch_ = state.epoch;
  start_ = state.consumed;
  taken_ = 0;
}

}  // namespace lockstep::data
