// ModuleWatch: whether a module still has the tensors that it had. A wrapper asks several times in each pass, so an
// answer costs a comparison of addresses, without names, allocations and counts of references.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "lockstep/base/shown_model.h"

namespace lockstep::nn_detail {

class ModuleWatch {
 public:
  // Whether the module has the parameters, buffers and submodules of the last look(), in the same places. First lets
  // views in the module follow their models (ShownModel), and throws what these throw.
  bool is_current(const torch::nn::Module& module) const;
  void look(const torch::nn::Module& module);

 private:
  // How many of each list a walk has passed.
  struct Position {
    std::size_t parameters = 0;
    std::size_t buffers = 0;
    std::size_t parts = 0;
  };
  bool is_the_same(const torch::nn::Module& module, Position& at) const;
  void add(const torch::nn::Module& module);

  // In the order of a walk. They stay alive, so an equal address is the same object. A tensor may be undefined.
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> buffers_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<const ShownModel*> views_;  // among the module and its parts
};

}  // namespace lockstep::nn_detail
