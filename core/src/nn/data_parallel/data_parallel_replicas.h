// The modules of DataParallel's replicas, and how they stay equal to the program's module.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::nn_detail {

// Each replica is a module of its own whose parameters are leaves of autograd, so that its gradients are its own. The
// first replica's parameters and buffers, and the parameters of all CPU replicas, are the program's module's memory.
class ReplicaModules {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  ReplicaModules(std::shared_ptr<torch::nn::Module> module, std::vector<torch::Device> devices, Factory factory);

  // In the caller's thread before a pass: what all replicas of the pass take over, and buffers, which the first replica
  // may change as soon as it runs. Makes new replicas if the module has other submodules, parameters or buffers.
  // Throws if a layer would wait for other ranks.
  void take_over(std::size_t count);
  // In the replica's thread before a pass: the parameters' values.
  void take_over_parameters(std::size_t replica);
  // The next pass makes new replicas.
  void renew() { replicas_.clear(); }

  torch::nn::Module& module(std::size_t replica) { return *replicas_[replica].module; }
  // Those that require a gradient, each once, and those of a replica that belong to them.
  std::vector<torch::Tensor> trained() const;
  std::vector<torch::Tensor> trained_of(std::size_t replica) const;

  // Throws if a parameter or buffer is not on `device`.
  static void check_device(const torch::nn::Module& module, torch::Device device);

 private:
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<torch::Tensor> parameters;  // as parameters_
    std::vector<torch::Tensor> buffers;     // as buffers_
    std::vector<std::int64_t> versions;     // of buffers_ when it took them over
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    std::uint64_t times_followed = 0;  // of the views in it (ShownModel), when it was made
  };
  bool changed() const;
  void make();
  std::shared_ptr<torch::nn::Module> make_one(std::size_t replica) const;
  Replica match(std::shared_ptr<torch::nn::Module> made, std::size_t replica) const;
  void take_over_flags(Replica& replica) const;
  void take_over_buffers(std::size_t replica);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<torch::Device> devices_;
  Factory factory_;
  std::vector<torch::Tensor> parameters_;  // of module_, each once, when the replicas were made
  std::vector<torch::Tensor> buffers_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  // without module_ itself
  std::vector<Replica> replicas_;
};

}  // namespace lockstep::nn_detail
