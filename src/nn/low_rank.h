// What both kinds of PowerSGD share: random numbers, orthonormal columns, counting passes.
#pragma once

#include <torch/types.h>

#include <cstdint>
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

// Fills `matrix` with normal random numbers, the same on every rank.
void fill_normal(const torch::Tensor& matrix, at::Generator& generator);

// The options, and how many passes there have been.
class LowRank {
 public:
  explicit LowRank(PowerSgdOptions options);

  const PowerSgdOptions& options() const { return options_; }
  bool compresses() const { return iteration_ >= options_.start_power_sgd_iter; }
  // To be called once for each bucket, after its part of the pass.
  void end_bucket(const GradBucket& bucket) { iteration_ += bucket.is_last() ? 1 : 0; }
  at::Generator next_generator();
  // A column of zeros in `q`, which a gradient of zeros leaves there, would make all later approximations zero: it gets
  // random numbers. `q` is the same on every rank.
  void renew_zero_columns(const torch::Tensor& q);
  std::string description(const std::string& name) const;

  // Passes and random numbers so far.
  NamedTensors counters() const;
  void load_counters(const NamedTensors& tensors);

 private:
  const PowerSgdOptions options_;
  RandomSeeds seeds_;
  std::int64_t iteration_ = 0;
  std::int64_t loaded_iteration_ = 0;
};

}  // namespace lockstep::nn_detail
