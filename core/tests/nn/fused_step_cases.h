// What the tests of fused steps share: parameters of many sizes, and optimizers for them. tests/parity/fused_step.py
// has the same values.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

// One element, less than a vector of the processor, parts of one, several, and another order of elements.
inline const std::vector<std::vector<std::int64_t>> kFusedSizes = {{1}, {7}, {33}, {17, 31}, {}, {4099}, {4, 3, 5, 5}};
inline constexpr std::size_t kUnused = 2;  // never has a gradient
inline constexpr std::size_t kChannelsLast = 6;

// The same on every machine.
inline torch::Tensor drawn_values(torch::IntArrayRef shape, int seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed), torch::kDouble);
}

inline std::vector<torch::Tensor> make_parameters(torch::Dtype dtype,
                                                  const std::vector<std::vector<std::int64_t>>& sizes) {
  std::vector<torch::Tensor> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    torch::Tensor one = drawn_values(sizes[i], 7 + static_cast<int>(i)).to(dtype);
    if (i == kChannelsLast) one = one.contiguous(torch::MemoryFormat::ChannelsLast);
    all.push_back(one.requires_grad_());
  }
  return all;
}

// Gives parameter `i` the gradient of a step.
inline void set_gradient(const std::vector<torch::Tensor>& all, std::size_t i, int step) {
  const torch::Tensor values = drawn_values(all[i].sizes(), 1000 * (step + 1) + static_cast<int>(i));
  all[i].mutable_grad() = torch::empty_like(all[i]).copy_(values).detach();
}

struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>&)> make;
};

// Two groups with rates of their own.
template <typename Class, typename Options>
OptimizerCase in_two_groups(const std::string& name, const Options& options) {
  return {name, [options](const std::vector<torch::Tensor>& all) {
            const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
            std::vector<torch::optim::OptimizerParamGroup> groups;
            groups.emplace_back(std::vector<torch::Tensor>(all.begin(), middle));
            groups.emplace_back(std::vector<torch::Tensor>(middle, all.end()));
            auto optimizer = std::make_unique<Class>(groups, options);
            optimizer->param_groups()[1].options().set_lr(options.lr() / 3);
            return optimizer;
          }};
}

}  // namespace lockstep::test
