// Files that Python has written, and that Python reads: judged by Python itself.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/nn/lr_schedules.h"
#include "support/expect_error.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

// Python writes one value with every dtype, layout and kind of nesting; Lockstep reads and writes it; Python compares.
TEST(TorchFileParity, PythonGetsBackWhatItWrote) {
  const test::ScratchFolder folder;
  test::run_python("interchange.py", {"write", folder.path()});
  for (const char* name : {"values", "values-legacy", "values-legacy4", "values-protocol4", "values-deflated"}) {
    write_torch_file(folder.path(std::string(name) + "-copy.pt"),
                     read_torch_file(folder.path(std::string(name) + ".pt")));
  }
  write_torch_file(folder.path("dcp-copy.pt"), read_torch_file(folder.path("dcp.pt")));
  const StateDict weights = read_state_dict(folder.path("weights.safetensors"));
  EXPECT_GT(weights.size(), 100U);
  write_state_dict(folder.path("copy.safetensors"), weights);
  EXPECT_EQ(test::run_python("interchange.py", {"compare", folder.path(), "values-copy.pt", "values-legacy-copy.pt",
                                                "values-legacy4-copy.pt", "values-protocol4-copy.pt",
                                                "values-deflated-copy.pt", "dcp-copy.pt", "copy.safetensors"}),
            "all well\n");
  const StateDict expected = read_state_dict(folder.path("values.pt"), torch::kCPU, "model");
  for (const char* name : {"foreign.pt", "foreign-legacy.pt", "foreign-protocol5.pt"}) {
    const StateDict model = read_state_dict(folder.path(name), torch::kCPU, "model");
    EXPECT_EQ(model.keys(), expected.keys()) << name;
    for (const auto& entry : expected) EXPECT_TRUE(torch::equal(model[entry.key()], *entry)) << name;
    EXPECT_EQ(
        read_torch_file(folder.path(name)).toGenericDict().at("scheduler").toGenericDict().at("last_epoch").toInt(), 3);
  }
}

struct SavedTraining {
  // No bias before the normalization, which would cancel it: its gradient would be rounding errors alone, and Adam
  // makes steps of full length from these.
  torch::nn::Sequential net{torch::nn::Linear(10, 16), torch::nn::ReLU(), torch::nn::BatchNorm1d(16),
                            torch::nn::Linear(16, 3)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<lockstep::optim::StepLR> scheduler;
  std::int64_t step = 0;

  explicit SavedTraining(const std::string& kind) {
    net->to(torch::kDouble);
    namespace optim = torch::optim;
    if (kind == "sgd") make<optim::SGD>(optim::SGDOptions(0.05));
    if (kind == "momentum") make<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
    if (kind == "adam") make<optim::Adam>(optim::AdamOptions(0.01).betas({0.8, 0.95}));
    if (kind == "amsgrad") make<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true));
    if (kind == "adamw") make<optim::AdamW>(optim::AdamWOptions(0.01));
    if (kind == "adamw-amsgrad") make<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true));
    if (kind == "rmsprop") make<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
    if (kind == "adagrad") make<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.01));
    if (kind == "sgd") scheduler = std::make_unique<lockstep::optim::StepLR>(*optimizer, 7, 0.8);
  }

  // The groups of interchange.py. The options of a group replace those of the optimizer, so they begin as a copy.
  template <typename Optimizer, typename Options>
  void make(const Options& options) {
    std::vector<torch::Tensor> weights;
    std::vector<torch::Tensor> others;
    for (const auto& entry : net->named_parameters()) {
      (entry.key().ends_with("weight") ? weights : others).push_back(*entry);
    }
    auto first = std::make_unique<Options>(options);
    first->weight_decay(0.01);
    auto second = std::make_unique<Options>(options);
    second->lr(0.02);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(weights, std::move(first));
    groups.emplace_back(others, std::move(second));
    optimizer = std::make_unique<Optimizer>(groups, options);
  }

  void load(const std::string& path) {
    const c10::impl::GenericDict state = read_torch_file(path).toGenericDict();
    load_state_dict(*net, to_state_dict(state.at("model")));
    load_state_dict(*optimizer, state.at("optimizer"));
    step = state.at("step").toInt();
    if (scheduler) scheduler->load_state_dict(state.at("scheduler"));
  }

  void save(const std::string& path) const {
    c10::impl::GenericDict state(c10::AnyType::get(), c10::AnyType::get());
    state.insert("model", to_ivalue(state_dict(*net)));
    state.insert("optimizer", state_dict(*optimizer));
    state.insert("step", step);
    if (scheduler) state.insert("scheduler", scheduler->state_dict());
    write_torch_file(path, state);
  }

  void train(int steps) {
    for (const std::int64_t end = step + steps; step < end; ++step) {
      const double factor = static_cast<double>(step + 1);
      const auto inputs = torch::sin(torch::arange(80, torch::kDouble) * factor).view({8, 10});
      const auto labels = torch::cos(torch::arange(24, torch::kDouble) * factor).view({8, 3});
      optimizer->zero_grad();
      torch::mse_loss(net->forward(inputs), labels).backward();
      optimizer->step();
      if (scheduler) scheduler->step();
    }
  }
};

// The relative difference of the weights (double) that rounding alone may make: both sides calculate the same formulas,
// but in another order. A forgotten state (a momentum, a count of steps) makes differences over a thousand times
// larger.
constexpr double kRounding = 1e-9;

// One Python process trains with all optimizers in turn: starting it takes longer than training.
class OptimizerParity : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  static constexpr int kSteps = 50;
  static constexpr std::array kKinds = {"sgd",   "momentum",      "adam",    "amsgrad",
                                        "adamw", "adamw-amsgrad", "rmsprop", "adagrad"};

  void SetUp() override { torch::set_num_threads(1); }

  std::string file(const std::string& kind, const std::string& name) const {
    return folder_.path(kind + "-" + name + ".pt");
  }
  void python(Arguments& calls, const std::string& kind, const std::string& from, const std::string& to, int first,
              int steps) const {
    for (const std::string& word : {std::string(kind), from == "-" ? from : file(kind, from), file(kind, to),
                                    std::to_string(first), std::to_string(steps)}) {
      calls.push_back(word);
    }
  }
  void ours(const std::string& kind, const std::string& from, const std::string& to, int steps) const {
    SavedTraining training(kind);
    if (from != "-") training.load(file(kind, from));
    training.train(steps);
    training.save(file(kind, to));
  }

  test::ScratchFolder folder_;
};

// Python converts all of an optimizer's state but the number of steps.
TEST_F(OptimizerParity, StateOfAnotherDtypeIsLoadedAsInPython) {
  Arguments calls{"halve"};
  for (const char* kind : kKinds) {
    ours(kind, "-", "whole", 3);
    for (const std::string& word : {std::string(kind), file(kind, "whole"), file(kind, "halves"), file(kind, "loaded")})
      calls.push_back(word);
  }
  test::run_python("interchange.py", calls);
  for (const char* kind : kKinds) {
    SavedTraining training(kind);
    training.load(file(kind, "halves"));
    const auto mine = state_dict(*training.optimizer).toGenericDict().at("state").toGenericDict();
    const auto pythons = read_torch_file(file(kind, "loaded")).toGenericDict();
    EXPECT_EQ(mine.size(), pythons.size());
    for (const auto& parameter : mine) {
      for (const auto& field : parameter.value().toGenericDict()) {
        const torch::Tensor expected = pythons.at(parameter.key()).toGenericDict().at(field.key()).toTensor();
        EXPECT_EQ(field.value().toTensor().scalar_type(), expected.scalar_type()) << kind << field.key();
        EXPECT_TRUE(field.value().toTensor().equal(expected)) << kind << field.key();
      }
    }
  }
}

TEST_F(OptimizerParity, TrainingGoesOnOnTheOtherSideAndBack) {
  Arguments first{"train"};
  for (const char* kind : kKinds) {
    python(first, kind, "-", "python-first", 0, kSteps);
    python(first, kind, "python-first", "python-all", kSteps, 2 * kSteps);
  }
  test::run_python("interchange.py", first);
  for (const char* kind : kKinds) {
    ours(kind, "python-first", "ours-second", kSteps);
    ours(kind, "-", "ours-first", kSteps);
    ours(kind, "ours-first", "ours-all", 2 * kSteps);
  }
  Arguments second{"train"};
  for (const char* kind : kKinds) {
    python(second, kind, "ours-second", "mixed", 2 * kSteps, kSteps);
    python(second, kind, "ours-first", "python-second", kSteps, kSteps);
  }
  test::run_python("interchange.py", second);
  Arguments distances{"distance"};
  for (const char* kind : kKinds) {
    ours(kind, "python-second", "mixed-ours", kSteps);
    for (const char* name : {"mixed", "python-all", "mixed-ours", "ours-all"}) distances.push_back(file(kind, name));
  }
  std::istringstream lines(test::run_python("interchange.py", distances));
  for (const char* kind : kKinds) {
    for (const char* begun : {"Python", "C++"}) {
      double distance = 1;
      lines >> distance;
      EXPECT_LT(distance, kRounding) << kind << ", begun in " << begun;
    }
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
