// Fused steps. The judge is the optimizer's own step() on the same gradients: the same numbers up to the last bits, the
// same state. tests/parity/fused_step_parity_test.cpp compares them with Python's, bit for bit.
#include "lockstep/nn/fused_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "nn/fused_step_cases.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Sizes = std::vector<std::vector<std::int64_t>>;

const Sizes kSizes = [] {
  Sizes all = kFusedSizes;
  all.push_back({0, 3});
  return all;
}();
constexpr std::size_t kLate = 3;  // has no gradient in the first steps
constexpr int kFirstOfLate = 4;

void set_gradients(const std::vector<Tensor>& all, int step) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == kUnused || (i == kLate && step < kFirstOfLate)) continue;
    set_gradient(all, i, step);
  }
}

std::vector<OptimizerCase> kinds() {
  using namespace torch::optim;
  const SGDOptions sgd(0.1);
  const AdamOptions adam(0.01);
  const AdamWOptions adamw(0.01);
  const AdagradOptions adagrad(0.1);
  return {
      in_two_groups<SGD>("SGD", sgd),
      in_two_groups<SGD>("SGD, decay", SGDOptions(sgd).weight_decay(0.1)),
      in_two_groups<SGD>("SGD, momentum", SGDOptions(sgd).momentum(0.9)),
      in_two_groups<SGD>("SGD, momentum, decay", SGDOptions(sgd).momentum(0.9).weight_decay(0.1)),
      in_two_groups<SGD>("SGD, dampening", SGDOptions(sgd).momentum(0.9).dampening(0.3).weight_decay(0.1)),
      in_two_groups<SGD>("SGD, nesterov", SGDOptions(sgd).momentum(0.9).nesterov(true).weight_decay(0.1)),
      in_two_groups<Adam>("Adam", adam),
      in_two_groups<Adam>("Adam, decay", AdamOptions(adam).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6)),
      in_two_groups<Adam>("Adam, amsgrad", AdamOptions(adam).amsgrad(true).weight_decay(0.1)),
      in_two_groups<AdamW>("AdamW", adamw),
      in_two_groups<AdamW>("AdamW, no decay", AdamWOptions(adamw).weight_decay(0)),
      in_two_groups<AdamW>("AdamW, amsgrad", AdamWOptions(adamw).amsgrad(true).weight_decay(0.3)),
      in_two_groups<Adagrad>("Adagrad", adagrad),
      in_two_groups<Adagrad>("Adagrad, decay",
                             AdagradOptions(adagrad).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5)),
  };
}

// Numbers of steps as tensors of one element.
std::vector<Tensor> state_of(Optimizer& optimizer, const Tensor& parameter) {
  using namespace torch::optim;
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  OptimizerParamState* const state = found->second.get();
  const auto of_adam = [](const auto& one) {
    std::vector<Tensor> all{torch::tensor(one.step()), one.exp_avg(), one.exp_avg_sq()};
    if (one.max_exp_avg_sq().defined()) all.push_back(one.max_exp_avg_sq());
    return all;
  };
  if (const auto* const one = dynamic_cast<SGDParamState*>(state)) return {one->momentum_buffer()};
  if (const auto* const one = dynamic_cast<AdamParamState*>(state)) return of_adam(*one);
  if (const auto* const one = dynamic_cast<AdamWParamState*>(state)) return of_adam(*one);
  const auto& one = dynamic_cast<AdagradParamState&>(*state);
  return {torch::tensor(one.step()), one.sum()};
}

// `relative` to the largest element, or to 1. 0: the same bits.
void expect_close(const Tensor& ours, const Tensor& theirs, double relative, const std::string& where) {
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << where;
  ASSERT_EQ(ours.scalar_type(), theirs.scalar_type()) << where;
  EXPECT_EQ(ours.strides(), theirs.strides()) << where;
  if (!ours.is_floating_point() || relative == 0 || ours.numel() == 0) {
    EXPECT_TRUE(torch::equal(ours, theirs)) << where;
    return;
  }
  const double bound = relative * std::max(1.0, theirs.abs().max().item<double>());
  EXPECT_LE((ours - theirs).abs().max().item<double>(), bound) << where;
}

struct FusedAndPlain {
  FusedAndPlain(const OptimizerCase& kind, torch::Dtype dtype, const Sizes& sizes = kSizes)
      : name(kind.name + (dtype == torch::kFloat ? ", float" : ", double")),
        relative(dtype == torch::kFloat ? 1e-6 : 1e-12),
        ours(make_parameters(dtype, sizes)),
        theirs(make_parameters(dtype, sizes)),
        fused(kind.make(ours)),
        plain(kind.make(theirs)) {}

  void step(int number, bool by_kernels) {
    set_gradients(ours, number);
    set_gradients(theirs, number);
    if (by_kernels) {
      EXPECT_TRUE(fused_step(*fused)) << name;
    } else {
      fused->step();
    }
    plain->step();
  }

  void expect_alike(const std::string& when) const {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const std::string where = name + ", " + when + ", parameter " + std::to_string(i);
      expect_close(ours[i].detach(), theirs[i].detach(), relative, where);
      const auto state = state_of(*fused, ours[i]);
      const auto expected = state_of(*plain, theirs[i]);
      ASSERT_EQ(state.size(), expected.size()) << where;
      for (std::size_t k = 0; k < state.size(); ++k)
        expect_close(state[k], expected[k], relative, where + ", state " + std::to_string(k));
    }
  }

  std::string name;
  double relative;
  std::vector<Tensor> ours;
  std::vector<Tensor> theirs;
  std::unique_ptr<Optimizer> fused;
  std::unique_ptr<Optimizer> plain;
};

TEST(FusedStep, TakesTheStepsOfTheOptimizer) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble}) {
    for (const OptimizerCase& one : kinds()) {
      FusedAndPlain pair(one, dtype);
      for (int step = 0; step < 10; ++step) {
        if (step == 5) {
          for (Optimizer* optimizer : {pair.fused.get(), pair.plain.get()})
            for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() / 2);
        }
        pair.step(step, /*by_kernels=*/true);
      }
      pair.expect_alike("fused");
      for (int step = 10; step < 15; ++step) pair.step(step, /*by_kernels=*/false);
      pair.expect_alike("then its own");
    }
  }
}

// Several tasks for several threads. Their number changes no bit.
TEST(FusedStep, LargeParametersOnSeveralThreads) {
  const int threads = torch::get_num_threads();
  for (const OptimizerCase& one : kinds()) {
    if (one.name.find(',') != std::string::npos && one.name != "SGD, nesterov") continue;
    std::vector<Tensor> first;
    for (const int number : {1, 3}) {
      torch::set_num_threads(number);
      FusedAndPlain pair(one, torch::kFloat, {{1000003}});
      for (int step = 0; step < 2; ++step) pair.step(step, /*by_kernels=*/true);
      pair.expect_alike("large");
      if (first.empty()) first = pair.ours;
      EXPECT_TRUE(torch::equal(first[0], pair.ours[0])) << one.name;
    }
  }
  torch::set_num_threads(threads);
}

TEST(FusedStep, GoesOnFromASavedState) {
  for (const OptimizerCase& one : kinds()) {
    FusedAndPlain pair(one, torch::kFloat);
    for (int step = 0; step < 6; ++step) {
      set_gradients(pair.theirs, step);
      pair.plain->step();
    }
    std::stringstream file;
    torch::save(*pair.plain, file);
    torch::load(*pair.fused, file);
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < pair.ours.size(); ++i) pair.ours[i].copy_(pair.theirs[i]);
    for (int step = 6; step < 12; ++step) pair.step(step, /*by_kernels=*/true);
    pair.expect_alike("after loading");
  }
}

// As step() counts them: what a program has saved for a backward pass, and copies of an asynchronous checkpoint.
TEST(FusedStep, CountsItsChanges) {
  for (const OptimizerCase& one : kinds()) {
    FusedAndPlain pair(one, torch::kFloat);
    pair.step(0, /*by_kernels=*/true);
    const auto versions = [](Optimizer& optimizer, const Tensor& parameter) {
      std::vector<std::uint32_t> all{static_cast<std::uint32_t>(parameter._version())};
      for (const Tensor& tensor : state_of(optimizer, parameter))
        if (tensor.is_floating_point()) all.push_back(static_cast<std::uint32_t>(tensor._version()));
      return all;
    };
    const auto ours = versions(*pair.fused, pair.ours[0]);
    const auto theirs = versions(*pair.plain, pair.theirs[0]);
    pair.step(1, /*by_kernels=*/true);
    const auto ours_after = versions(*pair.fused, pair.ours[0]);
    const auto theirs_after = versions(*pair.plain, pair.theirs[0]);
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_EQ(ours_after[i] > ours[i], theirs_after[i] > theirs[i]) << one.name << ", tensor " << i;
  }
}

// What the kernels cannot do is the optimizer's own step: the same bits, for all parameters.
class FusedStepFallback : public testing::Test {
 protected:
  // `change` makes of the parameters with their gradients something for which there is no kernel.
  template <typename Class, typename Options>
  static void expect_own_step(const Options& options, const std::function<void(std::vector<Tensor>&)>& change,
                              const std::string& what) {
    std::vector<Tensor> ours = make_parameters(torch::kFloat, {{5, 4}, {7}});
    std::vector<Tensor> theirs = make_parameters(torch::kFloat, {{5, 4}, {7}});
    set_gradients(ours, 0);
    set_gradients(theirs, 0);
    change(ours);
    change(theirs);
    Class optimizer(ours, options);
    Class plain(theirs, options);
    EXPECT_FALSE(fused_step(optimizer)) << what;
    plain.step();
    for (std::size_t i = 0; i < ours.size(); ++i)
      expect_close(ours[i].detach(), theirs[i].detach(), 0, what + ", parameter " + std::to_string(i));
  }
};

struct Derived : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(closure);
  }
  int steps = 0;
};

TEST_F(FusedStepFallback, ForOtherOptimizers) {
  const auto nothing = [](std::vector<Tensor>&) {};
  expect_own_step<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1), nothing, "RMSprop");
  expect_own_step<Derived>(torch::optim::SGDOptions(0.1).momentum(0.9), nothing, "a derived class");
  const std::vector<Tensor> all = make_parameters(torch::kFloat, {{3}});
  set_gradients(all, 0);
  Derived derived(all, 0.1);
  fused_step(derived);
  EXPECT_EQ(derived.steps, 1);
}

TEST_F(FusedStepFallback, ForOtherTensors) {
  const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto sparse = [](std::vector<Tensor>& all) {
    all[0].mutable_grad() = torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::ones({2, 4}), {5, 4});
  };
  expect_own_step<torch::optim::SGD>(torch::optim::SGDOptions(0.1), sparse, "a sparse gradient");
  expect_own_step<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1), sparse, "a sparse gradient");
  const auto transposed = [](std::vector<Tensor>& all) { all[0].mutable_grad() = all[0].grad().t().contiguous().t(); };
  expect_own_step<torch::optim::SGD>(momentum, transposed, "a transposed gradient");
  expect_own_step<torch::optim::Adam>(torch::optim::AdamOptions(0.1), transposed, "a transposed gradient");
  const auto with_holes = [](std::vector<Tensor>& all) {
    const Tensor gradient = all[1].grad();
    all[1] = torch::ones({7, 2}).select(1, 0).requires_grad_();
    all[1].mutable_grad() = gradient;
  };
  expect_own_step<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1), with_holes, "a parameter with holes");
  const auto half = [](std::vector<Tensor>& all) {
    const Tensor gradient = all[1].grad();
    all[1] = all[1].detach().to(torch::kBFloat16).requires_grad_();
    all[1].mutable_grad() = gradient.to(torch::kBFloat16);
  };
  expect_own_step<torch::optim::SGD>(momentum, half, "bfloat16");
  expect_own_step<torch::optim::SGD>(
      momentum, [](std::vector<Tensor>& all) { all[1] = all[0]; }, "a parameter twice");
}

// Dimensions of size 1 have no order.
TEST(FusedStep, TakesGradientsWithOtherStridesInTheSameOrder) {
  Tensor parameter = torch::ones({4, 3, 1, 1}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4, 3, 1, 1}).as_strided({4, 3, 1, 1}, {3, 1, 3, 3});
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.5).momentum(0.9));
  EXPECT_TRUE(fused_step(optimizer));
  EXPECT_TRUE(torch::equal(parameter, torch::full({4, 3, 1, 1}, 0.5)));
}

}  // namespace
}  // namespace lockstep::test
