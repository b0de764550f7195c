// The shared-parameter step: on one machine, parameters and optimizer state live once, in memory that all ranks share.
// Each rank updates its own part of the elements, and every rank sees the result. Nothing is sent.
//
//   lockstep::DistributedDataParallel ddp(net);
//   lockstep::SharedStep<torch::optim::AdamW> optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
//   ...
//   optimizer.zero_grad();
//   loss_of(ddp->forward(x), y).backward();
//   optimizer.step();                                    // collective
//
// It is the optimizer itself (SGD, Adam, AdamW or Adagrad of LibTorch), with another step(). Options, groups with
// options of their own, schedulers, zero_grad, add_param_group, state(), save() and load(), checkpoints and clipping
// before step() (not with average_gradients) work as usual. Every rank has the whole state in state(), so any rank
// saves it, and a plain optimizer reads it. With any number of ranks and threads, step() gives the bits that step() of
// the plain optimizer gives with one thread; with `fused`, the bits that fused_step (lockstep/nn/fused_step.h) gives.
// This needs gradients with the strides of their parameters, as autograd makes them.
//
// At first all ranks have the values of rank 0. From then on a rank sees in its parameters what step() has computed,
// and what this rank has written itself. A value that a rank writes (a moving average that it puts in, a weight that it
// clamps) belongs to this rank alone until the next step, as with a plain optimizer. step() needs equal parameters on
// all ranks. So all ranks must write the same, and step() shares the new values. If ranks have written different values
// to a parameter, or only some have written, step() throws on every rank. The same holds for state.
//
// A parameter keeps its memory: set_data, torch::load of a module (which calls set_data) and a second SharedStep of the
// same parameter make the next step() throw. Load a module before the optimizer is made, or copy_ into parameters.
// load() of the optimizer gives its state new tensors; step() copies them, and handles to earlier state tensors are
// then invalid.
//
// Order: no rank changes a parameter before all ranks have called step(), and step() returns when all are done. So a
// rank that still computes, evaluates or saves never sees a part of a step.
//
// Gradients must be the same on all ranks, bit for bit, as DistributedDataParallel makes them. step() compares 16
// elements of each gradient: the first, the middle, the last, and 13 others at each step. Any difference of their bits
// is an error on every rank, which names the parameter and the ranks. So step() finds gradients that were never
// averaged (no_sync, no wrapper), and noise or clipping that a rank computes for itself. A norm that LibTorch computes
// (clip_grad_norm_) depends on the number of threads, which must then be the same on all ranks.
//
// Sum and step in one pass (average_gradients): each rank keeps its own gradients, and step() reads the gradients of
// all ranks in place. A gradient that is not in memory of the group is copied first; with DistributedDataParallel and
// gradient_as_bucket_view all gradients are in this memory. The mean has the bits of an all-reduce. So without max_norm
// the parameters have the same bits as after an all-reduce and a plain step, also with no_sync and uneven use of
// parameters. step() compares no gradients here: a gradient that a rank has changed for itself counts as it is.
//
// Clipping, with average_gradients: use max_norm, because a function that clips before step() would see the gradients
// of one rank only. lockstep::clip_grad_norm_ refuses these parameters. LibTorch's function of that name cannot refuse
// them, and ranks then scale their gradients by different factors. gradient_norm() is the norm of the mean before
// scaling; it does not depend on the number of ranks or threads. GradScaler works: if any rank finds an infinity or a
// NaN in its own gradients, all ranks skip the step. A mean that overflows although no rank's gradient does is not
// noticed: such a step is taken. In a join, the mean is over all ranks of the group; step() throws in a join with
// divide_by_initial_world_size = false, unless that join throws at uneven inputs.
//
// If a rank dies inside step(), the others finish the step for it: the part on which the dead rank was working is done
// again from saved values. The others' step() throws the error of the group; its text says after which step the
// parameters are. Parameters and state then belong to each rank alone, so a frozen rank that wakes later changes
// nothing. If the step could not be finished (a rank stood still for 5 seconds in the middle), is_whole() is false on
// all ranks: load a checkpoint.
//
// A process that a rank forks sees later steps too, in pages to which it has not written.
//
// Memory: parameters and state once for the machine instead of once for each rank. Addresses of parameters change when
// the optimizer is made. When the optimizer is gone, parameters stay where they are, and each rank has its own as soon
// as it writes to them.
//
// Optimizers of other classes do not compile. Refused, with an error on every rank:
//   - ranks on several machines, and backends other than lockstep: ZeroRedundancyOptimizer works there
//   - parameters on a GPU, sparse, with holes, or that are a part of a larger memory; a parameter that is twice in the
//     groups; two parameters that share memory
//   - sparse gradients; gradients or state of another dtype than the parameter
//   - options, groups or numbers of steps that differ between ranks; step() in inference mode
//   - more memory than the machine or container has; locked memory (mlockall); systems without /proc/self/pagemap
//
// Threads: not thread-safe. In DistributedDataParallel's join, ranks that have finished must step too:
// JoinOptions::after_shadow_pass (lockstep/nn/join.h). The constructor and step() are collective over the group, and
// block; they throw c10::ValueError where ranks disagree, and what the collectives throw (lockstep/c10d/errors.h).
#pragma once

#include <torch/optim.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/c10d/collective_step.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct SharedStepOptions {
  ProcessGroup process_group = nullptr;  // null: the world. All its ranks are on one machine
  // The step is that of fused_step: faster, and other last bits.
  bool fused = false;
  // Gradients are each rank's own, and step() takes their mean in the pass that steps. Nobody writes the mean to
  // memory. Under DistributedDataParallel register make_noop_hook() (lockstep/nn/comm_hook.h), so that the wrapper
  // leaves the gradients as they are. After step(), grad() is this rank's own gradient still. See "Sum and step in one
  // pass" above.
  bool average_gradients = false;
  // With average_gradients: step() scales the mean so that its norm over all parameters is at most this. 0: it does
  // not.
  double max_norm = 0;
};

namespace nn_detail {

// SharedStep without the type of the optimizer.
class SharedStepper {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  // Makes an optimizer of the same class, with these options for every group.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(
      const Groups& groups, const torch::optim::OptimizerOptions& options)>;

  // Collective. Returns `groups`, once all ranks have agreed that they can be shared.
  static const Groups& agree(const Groups& groups, const torch::optim::OptimizerOptions& defaults,
                             const Factory& factory, const SharedStepOptions& options);
  // Collective, after agree().
  SharedStepper(torch::optim::Optimizer& optimizer, Factory factory, const SharedStepOptions& options);
  ~SharedStepper();
  SharedStepper(const SharedStepper&) = delete;
  SharedStepper& operator=(const SharedStepper&) = delete;

  void step();
  std::uint64_t steps() const;
  bool is_whole() const;
  double gradient_norm() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nn_detail

template <typename Inner>
class SharedStep : public Inner, public CollectiveStep {
  template <typename... Kinds>
  static constexpr bool kIsOneOf = (std::is_same_v<Inner, Kinds> || ...);
  static_assert(kIsOneOf<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::Adagrad>,
                "SharedStep is for torch::optim::SGD, Adam, AdamW and Adagrad; ZeroRedundancyOptimizer takes others");

 public:
  using Inner::LossClosure;

  // Collective: all ranks pass the same parameters in the same groups. `defaults` are the options of groups without
  // any.
  template <typename Options>
  SharedStep(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults,
             const SharedStepOptions& options = {})
      : Inner(nn_detail::SharedStepper::agree(groups, defaults, factory<Options>(), options), defaults),
        stepper_(*this, factory<Options>(), options) {}
  template <typename Options>
  SharedStep(std::vector<torch::Tensor> parameters, const Options& defaults, const SharedStepOptions& options = {})
      : SharedStep(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults, options) {}

  // Collective. Every rank calls `closure` once, before the step. Returns its result.
  torch::Tensor step(typename Inner::LossClosure closure = nullptr) override {
    torch::Tensor loss;
    if (closure) {
      const torch::AutoGradMode with_gradients(true);
      loss = closure();
    }
    stepper_.step();
    return loss;
  }

  // Steps that have been taken with this object.
  std::uint64_t steps() const { return stepper_.steps(); }
  // False: a step failed in its middle, and some elements have taken it while others have not.
  bool is_whole() const { return stepper_.is_whole(); }
  // With max_norm: the norm of the mean gradients of the last step, before they were scaled. 0 before the first step.
  double gradient_norm() const { return stepper_.gradient_norm(); }

 private:
  template <typename Options>
  static nn_detail::SharedStepper::Factory factory() {
    return [](const std::vector<torch::optim::OptimizerParamGroup>& groups,
              const torch::optim::OptimizerOptions& options) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<Inner>(groups, static_cast<const Options&>(options));
    };
  }

  nn_detail::SharedStepper stepper_;
};

}  // namespace lockstep
