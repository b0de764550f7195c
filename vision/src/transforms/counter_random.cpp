#include "lockstep/transforms/counter_random.h"

#include <cmath>
#include <numbers>

namespace lockstep::data {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr int kRounds = 10;
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kStep0 = 0x9E3779B9;
  constexpr std::uint32_t kStep1 = 0xBB67AE85;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key = {key[0] + kStep0, key[1] + kStep1};
  }
  return counter;
}

CounterRandom::CounterRandom(const SampleKey& key, std::uint16_t stream) : key_(key), stream_(stream) {}

std::uint32_t CounterRandom::bits() {
  if (used_ == 4) {
    const auto index = static_cast<std::uint64_t>(key_.index);
    // The epoch has 32 bits of the counter: numbers repeat after 2^32 epochs. The sample has 64.
    numbers_ = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(key_.epoch), std::uint32_t{stream_} << 16 | block_},
                      {static_cast<std::uint32_t>(key_.seed), static_cast<std::uint32_t>(key_.seed >> 32)});
    ++block_;
    used_ = 0;
  }
  return numbers_[static_cast<std::size_t>(used_++)];
}

double CounterRandom::uniform() {
  const std::uint64_t high = bits();
  return static_cast<double>((high << 32 | bits()) >> 11) * 0x1p-53;
}

double CounterRandom::uniform(double low, double high) {
  return low + (high - low) * uniform();
}

std::int64_t CounterRandom::below(std::int64_t count) {
  // Some outcomes have one of the 2^53 numbers more than others: a bias that cannot be observed.
  return static_cast<std::int64_t>(uniform() * static_cast<double>(count));
}

double CounterRandom::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

// Marsaglia and Tsang (2000), with their boost for shapes below 1.
double CounterRandom::gamma(double shape) {
  if (shape < 1.0) {
    const double whole = gamma(shape + 1.0);
    return whole * std::pow(1.0 - uniform(), 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal();
    const double v = std::pow(1.0 + c * x, 3);
    if (v > 0.0 && std::log(1.0 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace lockstep::data
