// The implementation of ShardedOptimizer. core/include/lockstep/nn/zero_redundancy_optimizer.h explains the idea.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/device_backend.h"
#include "shard_exchange.h"

namespace lockstep {

class ShardedOptimizer::Impl {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // What all ranks must have alike, one line for each parameter. Throws if this rank cannot take part.
  static std::string own_lines(const Groups& groups, const OptimizerFactory& factory,
                               const ZeroRedundancyOptions& options);
  // Collective. Compares what `lines` returns on every rank.
  static void agree(const ProcessGroup& group, const std::function<std::string()>& lines);

  // After agree().
  Impl(const Groups& groups, OptimizerFactory factory, const ZeroRedundancyOptions& options);

  // Throws if the group was formed anew since.
  void check_group() const;
  // Takes over what the program has changed in `groups`: parameters (then it is collective), and options.
  void take_over(const Groups& groups);
  // Updates this rank's share. If the optimizer inside throws, the other ranks are told: they may have no reason to
  // throw, and would wait for this rank's parameters.
  torch::Tensor step_inner(const torch::optim::Optimizer::LossClosure& closure);
  // Sends each rank's share to all others.
  void send_parameters();
  void consolidate(const Groups& groups, int to);
  // Moves or copies the state of this rank's share out of a plain optimizer for all parameters, after check_alike. It
  // replaces all state that was there.
  void take_state(torch::optim::Optimizer& plain);
  void copy_state(const torch::optim::Optimizer& plain);
  void check_alike(const torch::optim::Optimizer& plain) const;

  // An optimizer for `groups`, with options of its own.
  std::unique_ptr<torch::optim::Optimizer> make(const Groups& groups) const;
  torch::optim::Optimizer& inner() { return *inner_; }
  const torch::optim::Optimizer& inner() const { return *inner_; }
  int owner_of(const torch::Tensor& parameter) const;

  // All state, on the rank that asked for it, until the next step.
  std::unique_ptr<torch::optim::Optimizer> consolidated_;

 private:
  std::vector<std::vector<torch::Tensor>> shares_to_send() const;
  void refuse_to_send(const std::exception& why) const;
  bool has_new_parameters(const Groups& groups) const;
  void take_parameters(const Groups& groups);
  void reset_state();
  // The groups with the parameters of one rank.
  Groups share_of(const Groups& groups, int rank) const;
  // Gives each new parameter an owner. Returns the groups with only the new parameters that this rank owns.
  Groups assign_new(const Groups& groups);

  const OptimizerFactory factory_;
  const ProcessGroup group_;  // of its own
  const nn_detail::DeviceBackend backend_;
  const ZeroRedundancyOptions options_;
  nn_detail::ShardExchange exchange_;
  std::vector<std::vector<torch::Tensor>> known_;  // the parameters of each group
  // The owners of all parameters that this optimizer ever had, by TensorImpl. An entry keeps its address in use.
  // Otherwise a new tensor could get the address of a freed one, and with it an owner that other ranks do not know.
  struct Owner {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;  // keeps the address in use
    int rank;
  };
  std::unordered_map<const void*, Owner> owners_;
  std::vector<std::int64_t> load_;  // bytes of each rank's parameters
  std::unique_ptr<torch::optim::Optimizer> inner_;
};

}  // namespace lockstep
