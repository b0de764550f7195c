// Fused steps beside those of PyTorch's optimizers with fused=True: parameters and state, bit for bit. fused_step.py
// has the same cases.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/nn/fused_step.h"
#include "parity/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using Dict = c10::impl::GenericDict;
using torch::Tensor;
using torch::optim::Optimizer;

constexpr int kSteps = 10;
// The third parameter has no gradient, the last one has its elements in another order.
const std::vector<std::vector<std::int64_t>> kSizes = {{1}, {7}, {33}, {17, 31}, {}, {4099}, {4, 3, 5, 5}};
constexpr std::size_t kUnused = 2;
constexpr std::size_t kChannelsLast = 6;

struct Case {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)> make;
};

// Two groups with rates of their own.
template <typename Class, typename Options>
Case with(const std::string& name, const Options& options) {
  return {name, [options](const std::vector<Tensor>& all) {
            const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
            std::vector<torch::optim::OptimizerParamGroup> groups;
            groups.emplace_back(std::vector<Tensor>(all.begin(), middle));
            groups.emplace_back(std::vector<Tensor>(middle, all.end()));
            auto optimizer = std::make_unique<Class>(groups, options);
            optimizer->param_groups()[1].options().set_lr(options.lr() / 3);
            return optimizer;
          }};
}

std::vector<Case> cases() {
  using namespace torch::optim;
  return {
      with<SGD>("sgd", SGDOptions(0.1)),
      with<SGD>("sgd_momentum", SGDOptions(0.1).momentum(0.9)),
      with<SGD>("sgd_dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1)),
      with<SGD>("sgd_nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
      with<Adam>("adam", AdamOptions(0.01)),
      with<Adam>("adam_decay", AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1)),
      with<Adam>("adam_amsgrad", AdamOptions(0.01).amsgrad(true)),
      with<AdamW>("adamw", AdamWOptions(0.01)),
      with<AdamW>("adamw_amsgrad", AdamWOptions(0.01).weight_decay(0.3).amsgrad(true)),
      with<Adagrad>("adagrad", AdagradOptions(0.1)),
      with<Adagrad>("adagrad_decay",
                    AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5)),
  };
}

Tensor random(torch::IntArrayRef shape, int seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, torch::kDouble);
}

struct Training {
  Training(const Case& one, torch::Dtype dtype) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      Tensor parameter = random(kSizes[i], 7 + static_cast<int>(i)).to(dtype);
      if (i == kChannelsLast) parameter = parameter.contiguous(torch::MemoryFormat::ChannelsLast);
      parameters.push_back(parameter.requires_grad_());
    }
    optimizer = one.make(parameters);
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (i == kUnused) continue;
        const Tensor values = random(kSizes[i], 1000 * (step + 1) + static_cast<int>(i));
        parameters[i].mutable_grad() = torch::empty_like(parameters[i]).copy_(values).detach();
      }
      EXPECT_TRUE(fused_step(*optimizer));
    }
  }

  std::vector<Tensor> parameters;
  std::unique_ptr<Optimizer> optimizer;
};

// All tensors of the state of Python's optimizer.
void expect_same_state(const c10::IValue& ours, const c10::IValue& theirs) {
  const Dict state = ours.toGenericDict().at("state").toGenericDict();
  for (const auto& of_parameter : theirs.toGenericDict().at("state").toGenericDict()) {
    for (const auto& entry : of_parameter.value().toGenericDict()) {
      if (!entry.value().isTensor()) continue;
      const Tensor tensor = state.at(of_parameter.key()).toGenericDict().at(entry.key()).toTensor();
      EXPECT_TRUE(torch::equal(tensor, entry.value().toTensor()))
          << entry.key().toStringRef() << " of parameter " << of_parameter.key().toInt();
    }
  }
}

TEST(FusedStepParity, ParametersAndStatesArePyTorchs) {
  const test::ScratchFolder folder;
  test::run_python("fused_step.py", {folder.path("python.pt")});
  const Dict python = checkpoint::read_torch_file(folder.path("python.pt")).toGenericDict();
  ASSERT_EQ(python.size(), 2 * cases().size());
  torch::set_num_threads(1);
  for (const Case& one : cases()) {
    for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble}) {
      const std::string name = one.name + (dtype == torch::kFloat ? " float" : " double");
      SCOPED_TRACE(name);
      const Dict expected = python.at(name).toGenericDict();
      const Training training(one, dtype);
      const auto theirs = expected.at("parameters").toListRef();
      ASSERT_EQ(training.parameters.size(), theirs.size());
      for (std::size_t i = 0; i < theirs.size(); ++i)
        EXPECT_TRUE(torch::equal(training.parameters[i], theirs[i].toTensor())) << "parameter " << i;
      expect_same_state(checkpoint::state_dict(*training.optimizer), expected.at("optimizer"));
    }
  }
}

}  // namespace
}  // namespace lockstep
