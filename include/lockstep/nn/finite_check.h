// What to do when a loss or a gradient is infinite or NaN: all ranks do the same, and the message names the rank.
//
//   lockstep::FiniteCheck finite(*net, {.policy = lockstep::NonFinitePolicy::kSkip});
//   ...
//   loss.backward();
//   if (finite.check(loss)) optimizer.step();
//
// Under DistributedDataParallel one rank's NaN is in every rank's gradients after the backward pass, and nobody can
// tell whose it was. So the ranks exchange their losses.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep {

enum class NonFinitePolicy {
  kError,  // check throws on every rank
  kSkip,   // check logs a warning and returns false on every rank: the program skips the optimizer's step
};

struct FiniteCheckOptions {
  NonFinitePolicy policy = NonFinitePolicy::kError;
  // With kSkip: more steps than this in a row that are not finite are an error.
  std::int64_t max_consecutive_skips = 10;
  ProcessGroup group = nullptr;  // null: the world
};

class FiniteCheck {
 public:
  // `module` must outlive the check.
  explicit FiniteCheck(const torch::nn::Module& module, const FiniteCheckOptions& options = {});

  // Collective over the group: one small all-gather; blocks. To be called once in each step, after the backward pass
  // that sends. `loss` is this rank's, of one number. Returns whether all ranks' losses and gradients are finite. The
  // error is a c10::Error such as "rank 0, step 17: the loss of rank 2 is nan; the gradient of 'fc.weight' is not
  // finite".
  bool check(const torch::Tensor& loss);

  // The number that messages will give the next check: from 0. After resuming, set it to that of the next step.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }
  // How many steps were not finite, with kSkip.
  std::int64_t skipped() const { return skipped_; }

 private:
  const torch::nn::Module& module_;
  const FiniteCheckOptions options_;
  std::int64_t step_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace lockstep
