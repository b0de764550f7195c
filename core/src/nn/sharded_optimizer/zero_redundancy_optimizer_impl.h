// The implementation of ShardedOptimizer. core/include/lockstep/nn/zero_redundancy_optimizer.h explains the idea.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/device_backend.h"
#include "nn/surviving_step.h"
#include "shard_exchange.h"

namespace lockstep {

class ShardedOptimizer::Impl final : public nn_detail::SurvivingStep {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // What all ranks must have alike, one line for each parameter. Throws if this rank cannot take part.
  static std::string own_lines(const Groups& groups, const OptimizerFactory& factory,
                               const ZeroRedundancyOptions& options);
  // Collective. Compares what `lines` returns on every rank.
  static void agree(const ProcessGroup& group, const std::function<std::string()>& lines);

  // After agree(). `whole`: the optimizer with the groups of all parameters.
  Impl(torch::optim::Optimizer& whole, OptimizerFactory factory, const ZeroRedundancyOptions& options);

  // Throws if the group was formed anew since. Under ElasticTraining a step may end in a later world than it began.
  void check_group() const;
  // A step begins. Throws for what a step under ElasticTraining may not do.
  void begin_step(bool has_closure);
  // Takes over what the program has changed in `groups`: parameters (then it is collective), and options.
  void take_over(const Groups& groups);
  // Updates this rank's share. If the optimizer inside throws, the other ranks are told: they may have no reason to
  // throw, and would wait for this rank's parameters.
  torch::Tensor step_inner(const torch::optim::Optimizer::LossClosure& closure);
  // Sends each rank's share to all others; under ElasticTraining by way of `around`.
  void send_parameters();
  void consolidate(const Groups& groups, int to);
  // Moves or copies the state of this rank's share out of a plain optimizer for all parameters, after check_alike. It
  // replaces all state that was there.
  void take_state(torch::optim::Optimizer& plain);
  void copy_state(const torch::optim::Optimizer& plain);
  void check_alike(const torch::optim::Optimizer& plain) const;

  std::string why_not() const override;
  std::string description() const override;
  bool has_loaded() const override { return has_loaded_; }
  std::unique_ptr<torch::optim::Optimizer> without_parameters() const override;
  void take_options(const torch::optim::Optimizer& from) override;
  void set_around(Around around) override;
  void forget() override { held_.clear(); }
  std::string lost() override;
  void share_values() override;
  void regain() override;

  // An optimizer for `groups`, with options of its own.
  std::unique_ptr<torch::optim::Optimizer> make(const Groups& groups) const;
  torch::optim::Optimizer& inner() { return *inner_; }
  const torch::optim::Optimizer& inner() const { return *inner_; }
  int owner_of(const torch::Tensor& parameter) const;

  // All state, on the rank that asked for it, until the next step.
  std::unique_ptr<torch::optim::Optimizer> consolidated_;

 private:
  // How the ranks talk: made anew with each world.
  struct Channel {
    Channel(const ZeroRedundancyOptions& options, torch::Device device);

    const ProcessGroup group;  // of its own
    const nn_detail::DeviceBackend backend;
    nn_detail::ShardExchange exchange;
  };
  struct Holders;

  const nn_detail::DeviceBackend& backend() const { return channel_->backend; }
  // Whether rank `rank` of `size` ranks keeps and steps the parameters of `owner`.
  bool holds(int rank, int owner, int size) const { return (rank - owner + size) % size < options_.copies; }
  bool holds(int owner) const { return holds(backend().rank(), owner, backend().world_size()); }
  bool is_sent(const torch::Tensor& parameter) const;
  std::vector<torch::Tensor> all_parameters() const;
  Holders find_holders() const;
  bool lacks(const Holders& holders, int rank, const torch::Tensor& parameter, std::size_t index) const;
  bool receive_missing(const Holders& holders);
  void keep_new_share(bool is_new);
  std::vector<std::vector<torch::Tensor>> shares_to_send() const;
  void refuse_to_send(const std::exception& why) const;
  bool has_new_parameters(const Groups& groups) const;
  void take_parameters(const Groups& groups);
  void reset_state();
  void note_held(const torch::optim::Optimizer& optimizer);
  // The groups with the parameters that `is_in` takes.
  Groups groups_of(const Groups& groups, const std::function<bool(const torch::Tensor&)>& is_in) const;
  // The groups with the parameters of one rank.
  Groups share_of(const Groups& groups, int rank) const;
  // Gives each new parameter an owner. Returns the groups with only the new parameters that this rank holds.
  Groups assign_new(const Groups& groups);
  // An optimizer for `groups` with this rank's state of their parameters. It shares the tensors.
  std::unique_ptr<torch::optim::Optimizer> part_of(const Groups& groups) const;

  torch::optim::Optimizer& whole_;
  const OptimizerFactory factory_;
  const ZeroRedundancyOptions options_;
  std::unique_ptr<Channel> channel_;
  std::vector<std::vector<torch::Tensor>> known_;  // the parameters of each group
  // The owners of all parameters that this optimizer ever had, by TensorImpl. An entry keeps its address in use.
  // Otherwise a new tensor could get the address of a freed one, and with it an owner that other ranks do not know.
  struct Owner {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;  // keeps the address in use
    int rank;
  };
  std::unordered_map<const void*, Owner> owners_;
  std::vector<std::int64_t> load_;                  // bytes of each rank's parameters
  std::unique_ptr<torch::optim::Optimizer> inner_;  // for the parameters that this rank holds
  std::unordered_set<const void*> held_;            // those whose state this rank has
  bool is_new_ = true;                              // has taken no step and loaded no state
  bool has_loaded_ = false;
  Around around_;             // empty: not under ElasticTraining
  bool has_stepped_ = false;  // since around_ was set
};

}  // namespace lockstep
