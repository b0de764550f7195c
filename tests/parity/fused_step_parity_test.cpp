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
#include "nn/fused_step_cases.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using Dict = c10::impl::GenericDict;
using torch::Tensor;
using torch::optim::Optimizer;

constexpr int kFusedSteps = 10;

std::vector<test::OptimizerCase> cases() {
  using namespace torch::optim;
  return {
      test::in_two_groups<SGD>("sgd", SGDOptions(0.1)),
      test::in_two_groups<SGD>("sgd_momentum", SGDOptions(0.1).momentum(0.9)),
      test::in_two_groups<SGD>("sgd_dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1)),
      test::in_two_groups<SGD>("sgd_nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
      test::in_two_groups<Adam>("adam", AdamOptions(0.01)),
      test::in_two_groups<Adam>("adam_decay", AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1)),
      test::in_two_groups<Adam>("adam_amsgrad", AdamOptions(0.01).amsgrad(true)),
      test::in_two_groups<AdamW>("adamw", AdamWOptions(0.01)),
      test::in_two_groups<AdamW>("adamw_amsgrad", AdamWOptions(0.01).weight_decay(0.3).amsgrad(true)),
      test::in_two_groups<Adagrad>("adagrad", AdagradOptions(0.1)),
      test::in_two_groups<Adagrad>("adagrad_decay",
                                   AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5)),
  };
}

struct FusedTraining {
  FusedTraining(const test::OptimizerCase& one, torch::Dtype dtype)
      : parameters(test::make_parameters(dtype, test::kFusedSizes)), optimizer(one.make(parameters)) {
    for (int step = 0; step < kFusedSteps; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (i != test::kUnused) test::set_gradient(parameters, i, step);
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
  for (const test::OptimizerCase& one : cases()) {
    for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble}) {
      const std::string name = one.name + (dtype == torch::kFloat ? " float" : " double");
      SCOPED_TRACE(name);
      const Dict expected = python.at(name).toGenericDict();
      const FusedTraining training(one, dtype);
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
