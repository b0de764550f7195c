// Random numbers as a function (Philox4x32-10) of a key and a counter. They depend only on the sample's key and on the
// purpose of the numbers. So a sample gets the same numbers in any thread, worker or rank, and in any order of samples.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::data {

// The sample, and the pass over the data.
struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
  bool operator==(const SampleKey&) const = default;
};

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// The random numbers of one sample and one purpose (`stream`: the index of a transform in its list). A value; not
// thread-safe.
class CounterRandom {
 public:
  CounterRandom(const SampleKey& key, std::uint16_t stream);

  std::uint32_t bits();
  // In [0, 1), with 53 random bits.
  double uniform();
  // In [low, high), or `low` when both are equal.
  double uniform(double low, double high);
  // Uniform in 0..count-1; count from 1 to 2^32.
  std::int64_t below(std::int64_t count);
  // True with probability p.
  bool chance(double p) { return uniform() < p; }
  // From the standard normal distribution.
  double normal();
  // From the gamma distribution with this shape (positive) and scale 1.
  double gamma(double shape);

 private:
  SampleKey key_;
  std::uint16_t stream_;
  std::uint16_t block_ = 0;
  int used_ = 4;
  std::array<std::uint32_t, 4> numbers_{};
};

}  // namespace lockstep::data
