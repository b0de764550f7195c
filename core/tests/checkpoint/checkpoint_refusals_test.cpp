#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "lockstep/checkpoint/checkpoint.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace optim = torch::optim;

// A restore that fails, for a file or a program that does not fit, and changes nothing.
class CheckpointRefusals : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "state"; }

  Checkpoint with(const TensorFile& file) const {
    write_tensor_file(path(), file);
    return Checkpoint::load(path());
  }

  // The error's text without the path that it must begin with; empty when there is none.
  std::string error_of(const std::function<void()>& restore, std::initializer_list<ErrorCode> codes) const {
    try {
      restore();
      return "";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::find(codes.begin(), codes.end(), error.code()), codes.end()) << error.what();
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with(path().native() + ": ")) << text;
      return text.substr(path().native().size() + 2);
    }
  }

  test::ScratchFolder folder_;
};

TEST_F(CheckpointRefusals, AModelThatCannotBeOverwritten) {
  const auto inference = [] {
    const c10::InferenceMode mode;
    return torch::ones({3});
  };
  const std::map<std::string, torch::Tensor> seconds{{"share memory", torch::ones({1}).expand({3})},
                                                     {"meta", torch::empty({3}, torch::kMeta)},
                                                     {"zeros", at::_efficientzerotensor({3}, torch::kFloat)},
                                                     {"inference", inference()},
                                                     {"layout", torch::ones({3}).to_sparse()}};
  const Checkpoint saved = with({{{"model.a", torch::ones({3})}, {"model.b", torch::ones({3})}}, {}});
  for (const auto& [reason, second] : seconds) {
    torch::nn::Module model;
    const torch::Tensor first = model.register_buffer("a", torch::zeros({3}));
    model.register_buffer("b", second);
    const std::string error = error_of([&] { saved.restore_model(model); }, {ErrorCode::kInvalidArgument});
    EXPECT_NE(error.find("b "), std::string::npos) << error;
    EXPECT_NE(error.find(reason), std::string::npos) << error;
    EXPECT_EQ(first.sum().item<float>(), 0) << reason;
  }
}

TEST_F(CheckpointRefusals, ComplexValuesForARealModel) {
  torch::nn::Module model;
  model.register_buffer("a", torch::zeros({3}));
  const Checkpoint saved = with({{{"model.a", torch::ones({3}, torch::kComplexFloat)}}, {}});
  EXPECT_NE(error_of([&] { saved.restore_model(model); }, {ErrorCode::kMismatch}).find("a is ComplexFloat"),
            std::string::npos);
}

const std::map<std::string, std::function<std::unique_ptr<optim::Optimizer>(const torch::Tensor&)>>&
optimizers_of_one() {
  using Parameters = std::vector<torch::Tensor>;
  static const std::map<std::string, std::function<std::unique_ptr<optim::Optimizer>(const torch::Tensor&)>> kAll{
      {"SGD",
       [](const auto& p) { return std::make_unique<optim::SGD>(Parameters{p}, optim::SGDOptions(0.1).momentum(0.9)); }},
      {"Adam",
       [](const auto& p) {
         return std::make_unique<optim::Adam>(Parameters{p}, optim::AdamOptions(0.1).amsgrad(true));
       }},
      {"AdamW",
       [](const auto& p) {
         return std::make_unique<optim::AdamW>(Parameters{p}, optim::AdamWOptions(0.1).amsgrad(true));
       }},
      {"RMSprop",
       [](const auto& p) {
         return std::make_unique<optim::RMSprop>(Parameters{p},
                                                 optim::RMSpropOptions(0.1).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](const auto& p) { return std::make_unique<optim::Adagrad>(Parameters{p}, optim::AdagradOptions(0.1)); }}};
  return kAll;
}

// The file of an optimizer after one step, with one field removed or replaced at a time.
class OptimizerRefusals : public CheckpointRefusals, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    optimizer_ = optimizers_of_one().at(GetParam())(parameter_);
    parameter_.mutable_grad() = torch::ones({3});
    optimizer_->step();
    Checkpoint state;
    state.add_optimizer(*optimizer_);
    state.save(path());
    good_ = read_tensor_file(path());
    target_ = optimizers_of_one().at(GetParam())(parameter_);
    target_->param_groups()[0].options().set_lr(7.0);
  }

  void expect_refused(const TensorFile& file, const std::string& field) {
    const Checkpoint state = with(file);
    const std::string error =
        error_of([&] { state.restore_optimizer(*target_); }, {ErrorCode::kCorrupt, ErrorCode::kMismatch});
    EXPECT_NE(error.find(field), std::string::npos) << field << ": " << error;
    EXPECT_EQ(target_->param_groups()[0].options().get_lr(), 7.0) << field;
    EXPECT_EQ(target_->state().size(), GetParam() == "Adagrad" ? 1U : 0U) << field;
  }

  torch::Tensor parameter_ = torch::ones({3}, torch::requires_grad());
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Optimizer> target_;
  TensorFile good_;
};

TEST_P(OptimizerRefusals, StateThatIsMissingOrOfAnotherKind) {
  for (const auto& [name, tensor] : good_.tensors) {
    TensorFile bad = good_;
    bad.tensors[name] = torch::ones({7});
    expect_refused(bad, name);
    bad.tensors[name] = torch::ones({3}, torch::kInt64);
    expect_refused(bad, name);
    bad.tensors.erase(name);
    if (GetParam() != "SGD") expect_refused(bad, name);  // without its only field, SGD has not made a step
  }
  for (const auto& [name, text] : good_.metadata) {
    if (!name.starts_with("optimizer.group.") && !name.starts_with("optimizer.param.")) continue;
    TensorFile bad = good_;
    bad.metadata.erase(name);
    expect_refused(bad, name);
  }
  TensorFile none = good_;
  none.tensors.clear();
  if (GetParam() != "SGD") expect_refused(none, "optimizer.param.0.");
}

TEST_P(OptimizerRefusals, NumbersThatNoOptimizerHas) {
  for (const auto& [name, text] : good_.metadata) {
    if (!name.starts_with("optimizer.group.") && !name.starts_with("optimizer.param.")) continue;
    std::vector<std::string> values{"", "nan", "inf", "1e400", "x"};
    const bool any_finite = name.ends_with(".lr") || name.ends_with(".dampening");
    if (!any_finite) values.emplace_back("-1");
    if (name.find(".beta") != std::string::npos) values.emplace_back("1e20");
    if (name.ends_with(".step")) values.emplace_back("9223372036854775807");
    for (const std::string& value : values) {
      TensorFile bad = good_;
      bad.metadata[name] = value;
      expect_refused(bad, name.substr(0, name.rfind('.')));
    }
  }
}

TEST_P(OptimizerRefusals, OptionsThatCouldNotBeRestoredAreNotSaved) {
  optimizer_->param_groups()[0].options().set_lr(std::nan(""));
  Checkpoint state;
  test::expect_error<CheckpointError>(ErrorCode::kInvalidArgument, {}, [&] { state.add_optimizer(*optimizer_); });
  optimizer_->param_groups()[0].options().set_lr(-1e-20);  // a scheduler's rounding
  state.add_optimizer(*optimizer_);
  state.restore_optimizer(*target_);
  EXPECT_EQ(target_->param_groups()[0].options().get_lr(), -1e-20);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerRefusals, testing::Values("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::checkpoint
