// An optimizer whose state is divided among the ranks (ZeRO stage 1, Rajbhandari et al., 2020): each rank updates its
// own share of the parameters, keeps the state of that share alone, and sends the new values to the other ranks.
//
//   DistributedDataParallel ddp(net);
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
//   ...
//   loss.backward();
//   optimizer.step();      // collective
//
// step() gives the parameters the same bits as the plain optimizer. With `fused`, a parameter gets the values that
// fused_step() gives on a plain optimizer of its owner's parameters. It behaves as PyTorch's ZeroRedundancyOptimizer.
// It is a torch::optim::Optimizer with all parameters in its groups, so schedulers, zero_grad, add_param_group and
// changed options work as usual: step() takes them over. Its own state() is empty; local_optimizer() has this rank's
// share.
//
// Which rank has which parameters: the parameters of a group are taken by size, largest first, and each goes to the
// rank with the fewest bytes so far. A parameter is not split. A group that is added later is divided in the same way.
//
// Gradients must be the same on all ranks, as DistributedDataParallel makes them. step() updates this rank's share,
// then sends all values in one all-gather for every `bucket_cap_mb` of parameters. A parameter that requires no
// gradient and has none is not sent. Parameters must be dense and on one device; they may have several dtypes and any
// strides. Their gradients may be sparse where the optimizer takes sparse gradients.
//
// The optimizer inside sees the parameters of one rank only, so it must update each parameter from that parameter's
// gradient and state alone. LBFGS does not, and is refused. Optimizers of your own: any class with a constructor
// (groups, options), or ShardedOptimizer with a function that makes it; step() must work with groups without
// parameters. save() and load() of such a class serve consolidate_state_dict and checkpoints.
//
// The constructor, step() and consolidate_state_dict() are collective over the group and block. In
// DistributedDataParallel's join, ranks that have finished must step too: JoinOptions::after_shadow_pass
// (lockstep/nn/join.h). Not thread-safe. Throws c10::ValueError on every rank if the ranks disagree about parameters,
// or if one rank has no parameters or wrong ones (the other ranks' errors name that rank and the reason), and what the
// collectives throw (lockstep/c10d/errors.h).
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/c10d/collective_step.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct ZeroRedundancyOptions {
  ProcessGroup process_group = nullptr;  // null: the world
  // Parameters sent at once, MiB. step() needs this much more memory, but no more than the parameters take. A larger
  // number makes fewer calls.
  double bucket_cap_mb = 25;
  // How many ranks keep the state of each parameter and step it: its owner and the next copies - 1 ranks, at most all
  // ranks. They have the same gradients, so a copy costs memory and computation, and nothing is sent for it. With 2 or
  // more, ElasticTraining takes the optimizer through the deaths of ranks, as long as one of these ranks lives.
  int copies = 1;
  // The optimizer inside takes fused_step (lockstep/nn/fused_step.h) in place of its own step(), unless there is a
  // closure. Python: fused=True among the arguments for the optimizer inside.
  bool fused = false;
};

// Makes the optimizer inside, for groups that all have options.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>& groups)>;

// ZeroRedundancyOptimizer without the type of the optimizer inside.
class ShardedOptimizer : public torch::optim::Optimizer, public CollectiveStep {
 public:
  // Collective: all ranks pass the same groups. `defaults` are the options of groups without any.
  ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, OptimizerFactory factory,
                   const ZeroRedundancyOptions& options = {});
  ~ShardedOptimizer() override;
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Collective. Every rank calls `closure`, as often as the optimizer inside does. Returns its result.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // Collective: rank `to` of the world gets the state of all ranks, and keeps it until the next step. Until then that
  // rank needs the memory of a plain optimizer.
  void consolidate_state_dict(int to = 0);
  // On the rank that has the whole state: a plain optimizer with all parameters, options and state. save() writes the
  // same, so torch::save(optimizer, path) makes a file that torch::load reads into a plain optimizer, and
  // Checkpoint::add_optimizer takes this optimizer. Throws on other ranks, and after a further
  // step.
  const torch::optim::Optimizer& consolidated() const;
  void save(torch::serialize::OutputArchive& archive) const override;

  // Loads the options of all groups and the state of this rank's share from a plain optimizer for the same parameters.
  // Call it on every rank. load() reads such an optimizer's archive, so torch::load(optimizer, path) works with files
  // of either kind and from any number of ranks. The whole state is in memory while it is read.
  void load_consolidated(const torch::optim::Optimizer& plain);
  void load(torch::serialize::InputArchive& archive) override;

  // This rank's share: its parameters, in the same number of groups, and their state. With `copies`, the optimizer also
  // has the shares of the ranks before this rank.
  const torch::optim::Optimizer& local_optimizer() const;
  // Bytes of this rank's state. The state of an optimizer that is not LibTorch's is written to memory to count its
  // bytes.
  std::size_t state_bytes() const;
  // The group rank that updates `parameter`.
  int owner_of(const torch::Tensor& parameter) const;

  nn_detail::SurvivingStep* surviving_step() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

template <typename Inner>
class ZeroRedundancyOptimizer : public ShardedOptimizer {
 public:
  template <typename Options>
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults,
                          const ZeroRedundancyOptions& options = {})
      : ShardedOptimizer(
            groups, std::make_unique<Options>(defaults),
            [defaults](const std::vector<torch::optim::OptimizerParamGroup>& some) {
              return std::make_unique<Inner>(some, defaults);
            },
            options) {}
  template <typename Options>
  ZeroRedundancyOptimizer(std::vector<torch::Tensor> parameters, const Options& defaults,
                          const ZeroRedundancyOptions& options = {})
      : ZeroRedundancyOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults, options) {}
};

}  // namespace lockstep
