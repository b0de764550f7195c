// Mixed precision: computing in bfloat16 while parameters stay exact.
//
// Two ways. Autocast keeps float parameters and computes single operations in bfloat16:
//
//   torch::Tensor loss;
//   {
//     const lockstep::Autocast autocast(torch::kCPU);
//     loss = loss_of(ddp->forward(x), y);
//   }
//   loss.backward();                       // gradients are float
//
// MasterWeights is for models whose parameters are bfloat16: half the memory traffic, and DistributedDataParallel sends
// half the bytes. Steps are taken on float copies, the masters: in bfloat16, most steps would be rounded away.
//
//   net->to(torch::kBFloat16);
//   lockstep::DistributedDataParallel<Net> ddp(net);
//   lockstep::MasterWeights masters(*net);
//   torch::optim::AdamW optimizer(masters.parameters(), 1e-3);
//   ...
//   loss_of(ddp->forward(x), y).backward();
//   masters.step(optimizer);
//   net->zero_grad();
//
// On CPUs, Autocast pays where the processor multiplies bfloat16 matrices (AMX, AVX512-BF16); on other processors both
// ways are slower than float. PyTorch's option mixed_precision of DistributedDataParallel, which is experimental,
// converts parameters before each pass; MasterWeights converts them after each step.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep {

// Autocast for a scope of this thread, as Python's torch.autocast. The backward pass belongs outside.
class Autocast {
 public:
  explicit Autocast(torch::DeviceType device, torch::Dtype dtype = torch::kBFloat16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  torch::Dtype dtype_before_;
  bool enabled_before_;
};

// Float copies of a module's half and bfloat16 parameters. Parameters of other dtypes are their own masters. Frozen
// parameters have none. Takes 4 bytes for each copied number, and as much again for its gradient. Not thread-safe.
class MasterWeights {
 public:
  // `module` must outlive this object, and keep its parameters. Make this object after DistributedDataParallel has sent
  // rank 0's values, so that the masters start equal on all ranks.
  explicit MasterWeights(const torch::nn::Module& module);

  // The masters, for the optimizer.
  std::vector<torch::Tensor> parameters() const;
  // The masters with their names, for clip_grad_norm_.
  const std::vector<NamedParameter>& named_parameters() const { return masters_; }

  // copy_gradients, optimizer.step(), copy_parameters.
  void step(torch::optim::Optimizer& optimizer);
  // Copies the parameters' gradients to the masters, as float.
  void copy_gradients();
  // Copies the masters to the parameters, rounded.
  void copy_parameters();
  // Copies the parameters to the masters. For parameters that were changed in another way, such as by the end of a
  // join.
  void reload();

  // The masters by name, for a checkpoint (checkpoint::TensorFile): the parameters alone would lose digits. Not copied.
  std::map<std::string, torch::Tensor> tensors() const;
  // Loads saved masters and rounds the parameters from them. Throws a ValueError for a master that is missing or has
  // another shape.
  void load(const std::map<std::string, torch::Tensor>& tensors);

 private:
  std::vector<NamedParameter> parameters_;  // the parameters that require a gradient
  std::vector<NamedParameter> masters_;     // the same tensor, or a float copy
};

}  // namespace lockstep
