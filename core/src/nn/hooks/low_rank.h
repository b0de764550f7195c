// Parts of PowerSGD: random numbers, orthonormal columns, counting passes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "hook_state.h"
#include "lockstep/nn/power_sgd.h"

namespace lockstep::nn_detail {

// The seeds that numpy's RandomState(seed).randint(1000000000) draws: PyTorch's hook takes its seeds from there.
class RandomSeeds {
 public:
  explicit RandomSeeds(std::uint32_t seed) : generator_(seed) {}
  std::uint64_t next();
  std::int64_t drawn() const { return drawn_; }

 private:
  std::mt19937 generator_;
  std::int64_t drawn_ = 0;
};

// Makes the columns of each matrix [count, n, r], n >= r, orthonormal, in place: by Gram-Schmidt for r <= 2 and half
// precision, else by QR. Gram-Schmidt leaves columns of zeros as they are.
void orthogonalize(const torch::Tensor& matrices, double epsilon);

// The options, and how many passes there have been.
class LowRank {
 public:
  explicit LowRank(PowerSgdOptions options);

  const PowerSgdOptions& options() const { return options_; }
  bool compresses() const { return iteration_ >= options_.start_power_sgd_iter; }
  // To be called once for each bucket, after its part of the pass.
  void end_bucket(const GradBucket& bucket) { iteration_ += bucket.is_last() ? 1 : 0; }
  // To be called once for each bucket of a pass. Nothing if its Q begins as the last pass left it: with warm_start, if
  // there is one (`has_q`). Otherwise Q begins with the random numbers of this generator.
  std::optional<at::Generator> generator_of_pass(bool has_q);
  // Gives `q` [count, m, r] this beginning, with orthonormal columns.
  void prepare_q(const torch::Tensor& q, std::optional<at::Generator>& generator);
  std::string description() const;

  // Passes and random numbers so far.
  NamedTensors counters() const;
  void load_counters(const NamedTensors& tensors);

 private:
  at::Generator next_generator();
  // Fills columns of zeros in `q` with random numbers. A gradient of zeros leaves such columns, and they would make all
  // later approximations zero. `q` is the same on every rank.
  void renew_zero_columns(const torch::Tensor& q);

  const PowerSgdOptions options_;
  RandomSeeds seeds_;
  std::int64_t iteration_ = 0;
  std::int64_t loaded_iteration_ = 0;
};

}  // namespace lockstep::nn_detail
