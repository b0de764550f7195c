// What to do when a loss or a gradient is infinite or NaN: all ranks do the same, and the message names the rank. Also
// finds replicas that have drifted apart (`compare_every`).
//
//   lockstep::FiniteCheck finite(*net, {.policy = lockstep::NonFinitePolicy::kSkip});
//   ...
//   loss.backward();
//   if (finite.check(loss)) optimizer.step();
//
// Under DistributedDataParallel one rank's NaN is in every rank's gradients after the backward pass, and nobody can
// tell whose it was. So the ranks exchange their losses. And while a check exists, DistributedDataParallel on the CPU
// looks at gradients before it sends them: at all values of a gradient of up to 4096, at 4096 or more of a larger one,
// evenly spread, which takes tens of microseconds. If a step is bad, the ranks exchange what they have seen, and the
// error names the ranks whose gradients were bad first, each with its first such parameter, and the step if it was an
// earlier one. Not named is the rank of a bad value that was not looked at (a single one, or a row of a matrix of more
// than 4096 rows), of gradients on a device, and of gradients that average_gradients() has made a mean.
//
// Reading all gradients takes some percent of a step of a small model. A program that clips has read them already: see
// the check with a norm. With kError, other programs have a cheaper way, `checks_per_sweep`.
//
// A parameter or buffer may have infinities on purpose: a bias of -infinity for a class that is never predicted, a
// mask. So a tensor that has infinities, but no NaN, at the constructor or at set_step() is not checked.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"
#include "lockstep/nn/replica.h"

namespace lockstep {

enum class NonFinitePolicy {
  kError,  // check throws on every rank
  // check logs a warning and returns false on every rank: the program skips the optimizer's step. A batch with NaN has
  // made the running statistics of a batch normalisation NaN in its forward pass: if a floating-point buffer is not
  // finite, all buffers get back the values that they had after the last good check, at set_step() or at the
  // constructor. This takes the memory of the buffers once more.
  kSkip,
};

struct FiniteCheckOptions {
  NonFinitePolicy policy = NonFinitePolicy::kError;
  // With kSkip: more steps than this in a row that are not finite are an error.
  std::int64_t max_consecutive_skips = 10;
  ProcessGroup group = nullptr;  // null: the world
  // 0: each check reads all gradients. Positive, for kError alone: each check reads a part of the parameters instead of
  // the gradients, and this number of checks reads all parameters. A gradient that is not finite makes its parameter
  // infinite or NaN, and the parameter never becomes finite again. So the error comes up to this number of checks
  // later, and names the parameter. Each check looks at the loss. On a GPU, with a positive number, each check judges
  // the loss and the parameters that the previous check has read. If the group also has a backend for the CPU
  // (cpu:lockstep,cuda:nccl), the check need not wait for the GPU. So one step is made with a loss that is not finite.
  // check_parameters() judges what the last check has read.
  std::int64_t checks_per_sweep = 0;

  // Positive: the checks 0, compare_every, 2 * compare_every, ... and check_parameters() compare the parameters' bits
  // among the ranks. A difference is an error with the same text on every rank, whatever `policy` is. The error names
  // the first parameter that differs, and the ranks that differ from the majority; without a majority the ranks that
  // are alike. At 100 this costs a thousandth of a step or less: a comparison reads the parameters once, and sends
  // their hash together with the loss. 0: off, for models whose ranks differ on purpose (average_parameters(),
  // make_noop_hook()).
  std::int64_t compare_every = 0;
  // Compares buffers too. Not for models with batch normalisation, whose running statistics differ within a step.
  bool compare_buffers = false;
  // Parameters and buffers that may differ between ranks: those in DistributedDataParallelOptions::ignored_parameters.
  std::vector<IgnoredTensor> ignored_parameters = {};
};

class FiniteCheck {
 public:
  // `module` must outlive the check.
  explicit FiniteCheck(const torch::nn::Module& module, const FiniteCheckOptions& options = {});

  // Collective over the group: one small all-gather; blocks. Call it once in each step, after the backward pass
  // that sends. `loss` is this rank's loss, one number. Returns whether all ranks' losses and gradients are finite. The
  // error is a c10::Error such as "rank 0, step 17: the loss of rank 2 is nan; the gradient of 'fc.weight' is not
  // finite", or "rank 0, step 17: the gradient of 'fc.weight' is not finite; rank 2 has sent a gradient of 'fc.weight'
  // that was not finite".
  bool check(const torch::Tensor& loss);
  // The same for a program that knows the norm of all gradients, as clip_grad_norm_ returns it: reads the gradients
  // only if this norm is not finite.
  bool check(const torch::Tensor& loss, double gradient_norm);
  // For kSkip, in place of check() where a GradScaler decides about the step. The argument says whether the step was
  // taken. If it was not, buffers get back their values, as in check(). Call it on all ranks; nothing is sent.
  //   finite.note_step(scaler.step(optimizer));
  void note_step(bool taken);

  // Collective, blocks. Reads all parameters and buffers, and throws on every rank if one is not finite, or if the
  // ranks differ (`compare_every`). Call it before you save them: checks_per_sweep finds a bad value late, and a step
  // may overflow with finite gradients.
  void check_parameters();

  // The number of the next check, from 0, as messages show it. After resuming, call set_step() with the number of the
  // next step, once the module has its values. `skipped_in_a_row`: how many steps right before this step were not
  // finite; they count for max_consecutive_skips. The same on all ranks.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step, std::int64_t skipped_in_a_row = 0);
  // How many steps were not finite, with kSkip.
  std::int64_t skipped() const { return skipped_; }

 private:
  // Which parameters and buffers are infinite before any step.
  void note_infinite();
  std::vector<NamedParameter> watched() const;
  std::vector<torch::Tensor> next_part();
  // The values that a check on a GPU leaves for the next check to read.
  struct Late;
  std::shared_ptr<Late> read_later(const torch::Tensor& loss, const std::vector<torch::Tensor>& part) const;
  // Reads the values that the previous check has left. If it has left none: a loss of 0.
  struct LateLoss {
    double loss;
    bool is_part_finite;
    std::int64_t step;
  };
  LateLoss take_late(std::shared_ptr<Late> next);
  // With kSkip: copies the buffers, if they are finite; puts the copies back where the buffers are not.
  void keep_buffers();
  void restore_buffers();
  // The names of tensors whose values are not finite, as text; empty: none.
  std::string bad_gradients() const;
  std::string bad_parameters() const;
  // The hashes of the compared tensors; empty if this step compares nothing.
  std::vector<double> own_hashes(bool compares) const;
  std::vector<NamedParameter> compared() const;
  // Does nothing if the ranks' hashes agree. If they differ: collective, and throws an error that names the first
  // tensor that differs.
  void refuse_drift(const std::vector<double>& by_rank, const std::vector<double>& hashes);
  // Counts the step of a check, or of note_step().
  void end_check();
  // Adds whose gradients were not finite before their mean. Collective. `losses`: by rank.
  void add_bad_senders(std::string& problem, const std::vector<double>& losses) const;
  // `found`: what this rank has found beside its loss. `next`: what is to be read later.
  bool decide(double loss, std::string found, std::shared_ptr<Late> next = nullptr);

  const torch::nn::Module& module_;
  const FiniteCheckOptions options_;
  std::int64_t step_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t equal_at_ = -1;                         // the step of the last comparison; -1: there was none
  std::set<std::string> infinite_;                     // names
  std::map<std::string, torch::Tensor> kept_buffers_;  // by name
  // The present sweep: its parameters, how many elements each check reads, and which comes next.
  std::vector<torch::Tensor> swept_;
  std::int64_t part_ = 0;
  std::size_t next_ = 0;
  std::int64_t next_element_ = 0;
  std::shared_ptr<Late> late_;
  std::shared_ptr<const void> evidence_;  // while it lives, reducers look at what this rank sends
  // The moments (gradient_evidence.h) that began with the end of each of the last checks, or with set_step() or the
  // constructor, in rising order. What reducers have seen before the first one is too old to be the cause of a problem.
  std::deque<std::uint64_t> ends_of_checks_;
};

}  // namespace lockstep
