#include "lockstep/data/data_partitioner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <sstream>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

// The rounding of fractions such as 1/3 must not make their sum too large.
constexpr double kTolerance = 1e-9;

// Python's generator: a Mersenne Twister whose state is made from an array of numbers, here only the seed. The C++
// standard library has the same generator but seeds it differently. Its state can be set from text.
std::mt19937 python_random(std::uint32_t seed) {
  constexpr std::size_t kWords = std::mt19937::state_size;
  std::vector<std::uint32_t> state(kWords);
  state[0] = 19650218U;
  for (std::size_t i = 1; i < kWords; ++i) {
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
  }
  std::size_t i = 1;
  const auto step = [&] {
    if (++i == kWords) {
      state[0] = state[kWords - 1];
      i = 1;
    }
  };
  for (std::size_t k = 0; k < kWords; ++k, step()) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + seed;
  }
  for (std::size_t k = 0; k < kWords - 1; ++k, step()) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
  }
  state[0] = 0x80000000U;
  std::stringstream text;
  for (const std::uint32_t word : state) text << word << ' ';
  text << kWords;
  std::mt19937 generator;  // NOLINT(bugprone-random-generator-seed): its state is read in the next line
  text >> generator;
  return generator;
}

// Uniform in 0..limit-1, with Python's method: as many bits as `limit` has, until the value is below it.
std::size_t below(std::mt19937& generator, std::size_t limit) {
  const int bits = std::bit_width(limit);
  for (;;) {
    const std::size_t value = static_cast<std::size_t>(generator()) >> (32 - bits);
    if (value < limit) return value;
  }
}

[[noreturn]] void reject(const std::string& text) {
  throw DataError(ErrorCode::kInvalidArgument, "DataPartitioner: " + text);
}

}  // namespace

DataPartitioner::DataPartitioner(std::int64_t size, const std::vector<double>& fractions, std::uint32_t seed) {
  if (size < 0 || size >= (std::int64_t{1} << 32)) {
    reject(fmt::format("the size must be from 0 to 2^32 - 1, found {}", size));
  }
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  for (const double fraction : fractions) {
    if (!(fraction >= 0)) reject(fmt::format("fractions must not be negative, found {}", fraction));
  }
  if (sum > 1 + kTolerance) reject(fmt::format("the fractions must add up to at most 1, found {}", sum));

  indices_.resize(static_cast<std::size_t>(size));
  std::iota(indices_.begin(), indices_.end(), 0);
  std::mt19937 generator = python_random(seed);
  for (std::size_t i = indices_.size(); i-- > 1;) std::swap(indices_[i], indices_[below(generator, i + 1)]);
  begins_.push_back(0);
  for (const double fraction : fractions) {
    const auto count = static_cast<std::size_t>(fraction * static_cast<double>(size));
    begins_.push_back(std::min(indices_.size(), begins_.back() + count));
  }
}

std::span<const std::int64_t> DataPartitioner::use(int partition) const {
  if (partition < 0 || partition >= partitions()) {
    reject(fmt::format("there is no partition {}, expected 0 to {}", partition, partitions() - 1));
  }
  const std::size_t begin = begins_[partition];
  return std::span(indices_).subspan(begin, begins_[partition + 1] - begin);
}

}  // namespace lockstep::data
