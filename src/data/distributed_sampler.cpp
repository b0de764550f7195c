#include "lockstep/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <charconv>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

// The numbers of "a=1 b=2" for the given names, which must all be there in this order.
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
  return fmt::format("size={} epoch={} consumed={} seed={} shuffle={}", state.size, state.epoch, state.consumed,
                     state.seed, state.shuffle ? 1 : 0);
}

SamplerState sampler_state_from_string(std::string_view text) {
  std::string_view rest = text;
  SamplerState state;
  state.size = take_number<std::int64_t>(rest, "size", text);
  state.epoch = take_number<std::int64_t>(rest, "epoch", text);
  state.consumed = take_number<std::int64_t>(rest, "consumed", text);
  state.seed = take_number<std::uint64_t>(rest, "seed", text);
  state.shuffle = take_number<std::uint64_t>(rest, "shuffle", text) != 0;
  return state;
}

DistributedSampler::DistributedSampler(std::int64_t size, DistributedSamplerOptions options)
    : size_(size), options_(options) {
  if (size < 0) throw DataError(ErrorCode::kInvalidArgument, fmt::format("dataset size must be >= 0, got {}", size));
  if (options.num_replicas < 1) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("the number of ranks must be at least 1, got {}", options.num_replicas));
  }
  if (options.rank < 0 || options.rank >= options.num_replicas) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("rank must be in 0..{} for {} ranks, got {}", options.num_replicas - 1,
                                options.num_replicas, options.rank));
  }
  if (options.exact && options.drop_last) {
    throw DataError(ErrorCode::kInvalidArgument,
                    "exact (every sample once) and drop_last exclude each other: choose one");
  }
}

std::int64_t DistributedSampler::share_of(std::int64_t samples_left) const {
  const std::int64_t world = options_.num_replicas;
  if (options_.drop_last) return samples_left / world;
  const std::int64_t first = options_.exact ? options_.rank : 0;
  return samples_left <= first ? 0 : (samples_left - first - 1) / world + 1;
}

std::int64_t DistributedSampler::remaining() const {
  return share_of(size_ - start_) - taken_;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  std::vector<std::int64_t> result(static_cast<std::size_t>(remaining()));
  if (result.empty()) return result;
  torch::Tensor order;
  if (options_.shuffle) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed + static_cast<std::uint64_t>(epoch_));
    order = torch::randperm(size_, generator, torch::TensorOptions().dtype(torch::kLong));
  }
  const std::int64_t* shuffled = options_.shuffle ? order.const_data_ptr<std::int64_t>() : nullptr;
  std::int64_t position = start_ + options_.rank + taken_ * options_.num_replicas;
  for (std::int64_t& index : result) {
    const std::int64_t wrapped = position % size_;  // past the end: padding, the sequence from its start again
    index = shuffled != nullptr ? shuffled[wrapped] : wrapped;
    position += options_.num_replicas;
  }
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
  const std::int64_t consumed = std::min(start_ + taken_ * options_.num_replicas, size_);
  return {size_, epoch_, consumed, options_.seed, options_.shuffle};
}

void DistributedSampler::load_state(const SamplerState& state) {
  const auto mismatch = [](std::string_view what, auto saved, auto now) {
    return DataError(ErrorCode::kMismatch,
                     fmt::format("the saved sampler state has {} {}, this sampler {}: an epoch can only go on with the "
                                 "same data in the same order; use the same {} or start from a whole epoch",
                                 what, saved, now, what));
  };
  if (state.size != size_) throw mismatch("dataset size", state.size, size_);
  if (state.shuffle != options_.shuffle) throw mismatch("shuffle", state.shuffle, options_.shuffle);
  if (state.shuffle && state.seed != options_.seed) throw mismatch("seed", state.seed, options_.seed);
  if (state.epoch < 0 || state.consumed < 0 || state.consumed > size_) {
    throw DataError(ErrorCode::kCorrupt, fmt::format("impossible sampler state: {}", to_string(state)));
  }
  epoch_ = state.epoch;
  start_ = state.consumed;
  taken_ = 0;
}

}  // namespace lockstep::data
