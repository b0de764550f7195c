// Parameters and steps of the tests of sharded optimizers.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace lockstep::test {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// Parameters of every kind: several dtypes, sizes from 0, scalars, another order of elements.
inline std::vector<torch::Tensor> parameters_of_every_kind() {
  auto generator = at::detail::createCPUGenerator(3);
  std::vector<torch::Tensor> all;
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{30, 20}, {7}, {}, {0, 3}, {4, 3, 5, 5}, {64}, {11, 2}}) {
    all.push_back(torch::randn(shape, generator));
  }
  all[1] = all[1].to(torch::kDouble);
  all[4] = all[4].contiguous(torch::MemoryFormat::ChannelsLast);
  all[5] = all[5].to(torch::kBFloat16);
  for (torch::Tensor& one : all) one.requires_grad_();
  return all;
}

inline Groups groups_with(const std::vector<std::vector<torch::Tensor>>& lists) {
  Groups groups;
  for (const std::vector<torch::Tensor>& list : lists) groups.emplace_back(list);
  return groups;
}

inline void set_random_gradients(const std::vector<torch::Tensor>& parameters, int step) {
  auto generator = at::detail::createCPUGenerator(100 + step);
  for (const torch::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes(), generator).to(parameter.scalar_type());
  }
}

inline void step_on(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters, int from,
                    int to) {
  for (int step = from; step < to; ++step) {
    set_random_gradients(parameters, step);
    optimizer.step();
  }
}

}  // namespace lockstep::test
