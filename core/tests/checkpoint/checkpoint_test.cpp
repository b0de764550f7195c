#include "lockstep/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace optim = torch::optim;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 8) {
    fc1 = register_module("fc1", torch::nn::Linear(4, width));
    bn = register_module("bn", torch::nn::BatchNorm1d(width));
    fc2 = register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(width, 1).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2->forward(torch::dropout(bn->forward(fc1->forward(x)), 0.5, is_training()));
  }
  torch::nn::Linear fc1{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
  torch::nn::Linear fc2{nullptr};
};
TORCH_MODULE(Net);

// Changes names as DataParallel wrappers do.
struct WrapperImpl : torch::nn::Module {
  explicit WrapperImpl(const Net& net) { register_module("module", net); }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Net&)>;

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const std::map<std::string, MakeOptimizer> kAll = {
      {"SGD",
       [](const Net& net) {
         return std::make_unique<optim::SGD>(net->parameters(), optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
       }},
      {"PlainSGD",
       [](const Net& net) { return std::make_unique<optim::SGD>(net->parameters(), optim::SGDOptions(0.1)); }},
      {"Adam",
       [](const Net& net) {
         return std::make_unique<optim::Adam>(net->parameters(), optim::AdamOptions(0.01).amsgrad(true));
       }},
      {"AdamW",
       [](const Net& net) { return std::make_unique<optim::AdamW>(net->parameters(), optim::AdamWOptions(0.01)); }},
      {"RMSprop",
       [](const Net& net) {
         return std::make_unique<optim::RMSprop>(net->parameters(),
                                                 optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](const Net& net) {
         return std::make_unique<optim::Adagrad>(net->parameters(), optim::AdagradOptions(0.01).lr_decay(0.1));
       }},
  };
  return kAll;
}

void train(Net& net, optim::Optimizer& optimizer, int first_step, int last_step) {
  for (int step = first_step; step < last_step; ++step) {
    const torch::Tensor x = torch::arange(24.0F).view({6, 4}).sin() + static_cast<double>(step);
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  }
}

void expect_error(ErrorCode code, std::initializer_list<std::string> pieces, const std::function<void()>& action) {
  test::expect_error<CheckpointError>(code, pieces, action);
}

void expect_equal(const Net& a, const Net& b) {
  const auto other = b->named_parameters();
  for (const auto& entry : a->named_parameters())
    EXPECT_TRUE(torch::equal(entry.value(), other[entry.key()])) << entry.key();
  const auto buffers = b->named_buffers();
  for (const auto& entry : a->named_buffers())
    EXPECT_TRUE(torch::equal(entry.value(), buffers[entry.key()])) << entry.key();
}

class OptimizerCheckpoints : public testing::TestWithParam<std::string> {
 protected:
  test::ScratchFolder folder_;
};

// Six steps give the same bits as three and, after loading, three more, with dropout.
TEST_P(OptimizerCheckpoints, TrainingGoesOnWithTheSameBits) {
  const MakeOptimizer& make = optimizers().at(GetParam());
  const auto path = folder_.path() / "state";
  torch::manual_seed(1);
  Net whole;
  const auto optimizer = make(whole);
  train(whole, *optimizer, 0, 3);
  Checkpoint saved;
  saved.add_model(*whole);
  saved.add_optimizer(*optimizer);
  saved.add_generator();
  saved.save(path);
  train(whole, *optimizer, 3, 6);

  torch::manual_seed(99);
  Net resumed;
  const auto other = make(resumed);
  train(resumed, *other, 0, 1);  // restoring must replace this state
  other->param_groups()[0].options().set_lr(7.0);
  const Checkpoint loaded = Checkpoint::load(path);
  loaded.restore_model(*resumed);
  loaded.restore_optimizer(*other);
  loaded.restore_generator();
  train(resumed, *other, 3, 6);
  expect_equal(whole, resumed);
}

TEST_P(OptimizerCheckpoints, TrainingDoesNotChangeWhatWasLoadedOrCloned) {
  const MakeOptimizer& make = optimizers().at(GetParam());
  torch::manual_seed(1);
  Net net;
  const auto optimizer = make(net);
  train(net, *optimizer, 0, 2);
  Checkpoint state;
  state.add_model(*net);
  state.add_optimizer(*optimizer);
  state.add_generator();
  const Checkpoint copy = state.clone();
  train(net, *optimizer, 2, 4);
  Net first;
  Net second;
  for (Net* target : {&first, &second}) {
    const auto fresh = make(*target);
    copy.restore_model(**target);
    copy.restore_optimizer(*fresh);
    copy.restore_generator();
    train(*target, *fresh, 2, 4);
    expect_equal(net, *target);
  }
}

// As in Python: a state that stayed bfloat16 would lose what is added to it.
TEST_P(OptimizerCheckpoints, StateTakesTheDtypeOfItsParameter) {
  const MakeOptimizer& make = optimizers().at(GetParam());
  Net low;
  low->to(torch::kBFloat16);
  const auto optimizer = make(low);
  for (const torch::Tensor& parameter : low->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer->step();
  Checkpoint state;
  state.add_optimizer(*optimizer);
  Net net;
  const auto other = make(net);
  state.restore_optimizer(*other);
  const auto states_of = [](const optim::Optimizer& one) {
    return state_dict(one).toGenericDict().at("state").toGenericDict();
  };
  const auto saved = states_of(*optimizer);
  const auto restored = states_of(*other);
  EXPECT_EQ(restored.size(), GetParam() == "PlainSGD" ? 0U : net->parameters().size());
  for (const auto& parameter : restored) {
    for (const auto& field : parameter.value().toGenericDict()) {
      const torch::Tensor before = saved.at(parameter.key()).toGenericDict().at(field.key()).toTensor();
      const torch::Tensor now = field.value().toTensor();
      EXPECT_EQ(now.scalar_type(), torch::kFloat) << field.key();
      EXPECT_TRUE(now.equal(before.to(torch::kFloat))) << field.key();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerCheckpoints,
                         testing::Values("SGD", "PlainSGD", "Adam", "AdamW", "RMSprop", "Adagrad"),
                         [](const auto& info) { return info.param; });

TEST(Checkpoint, AnotherModelIsNamedInFullAndLeftAlone) {
  Net net;
  Checkpoint state;
  state.add_model(*net);
  Net wider(9);
  const torch::Tensor before = wider->bn->weight.clone();
  expect_error(ErrorCode::kMismatch, {"fc1.weight is [8, 4] in the file and [9, 4] in the model"},
               [&] { state.restore_model(*wider); });
  EXPECT_TRUE(torch::equal(wider->bn->weight, before));
  torch::nn::Sequential other(torch::nn::Linear(1, 2));
  expect_error(ErrorCode::kMismatch, {"missing in the file: 0.weight, 0.bias", "unexpected in the file: bn.bias"},
               [&] { state.restore_model(*other); });
}

TEST(Checkpoint, ModulePrefixIsNeverWrittenAndStrippedWhenRead) {
  Net net;
  WrapperImpl wrapper(net);
  Checkpoint state;
  state.add_model(wrapper);
  Net other;
  state.restore_model(*other);
  expect_equal(net, other);
  Net third;
  WrapperImpl third_wrapper(third);
  state.restore_model(third_wrapper);
  expect_equal(net, third);

  // A file with the prefix "module.".
  const test::ScratchFolder folder;
  TensorFile file;
  for (const auto& entry : net->named_parameters())
    file.tensors["model.module." + entry.key()] = entry.value().detach();
  for (const auto& entry : net->named_buffers()) file.tensors["model.module." + entry.key()] = entry.value();
  write_tensor_file(folder.path() / "a", file);
  Net fourth;
  Checkpoint::load(folder.path() / "a").restore_model(*fourth);
  expect_equal(net, fourth);
}

// fused_step() would leave an optimizer with another order to its own, slower step().
TEST(Checkpoint, AnOptimizersStateHasTheOrderOfMemoryOfItsParameter) {
  const auto make = [] {
    return torch::randn({4, 3, 5, 5}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const auto average = [](optim::Adam& adam, const torch::Tensor& parameter) {
    return static_cast<optim::AdamParamState&>(*adam.state().at(parameter.unsafeGetTensorImpl())).exp_avg();
  };
  torch::Tensor trained = make();
  optim::Adam adam({trained}, optim::AdamOptions(0.1));
  trained.mutable_grad() = torch::randn_like(trained);
  adam.step();
  Checkpoint state;
  state.add_optimizer(adam);
  const torch::Tensor resumed = make();
  optim::Adam other({resumed}, optim::AdamOptions(0.1));
  state.restore_optimizer(other);
  EXPECT_EQ(average(other, resumed).strides(), resumed.strides());
  EXPECT_TRUE(average(other, resumed).equal(average(adam, trained)));
}

// SGD's buffer is a copy of the first gradient, with its order of memory. In 16 bits LibTorch's kernels round otherwise
// for operands of different orders.
TEST(Checkpoint, ABufferOfSGDKeepsTheOrderOfMemoryOfTheGradient) {
  const test::ScratchFolder folder;
  for (const bool parameter_last : {false, true}) {
    const auto ordered = [](const torch::Tensor& values, bool last) {
      return values.contiguous(last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous);
    };
    const auto make = [&] {
      torch::manual_seed(1);
      return ordered(torch::randn({4, 3, 5, 5}, torch::kBFloat16), parameter_last).requires_grad_();
    };
    const auto step = [&](optim::SGD& sgd, const torch::Tensor& parameter, int seed) {
      torch::manual_seed(static_cast<std::uint64_t>(seed));
      parameter.mutable_grad() = ordered(torch::randn({4, 3, 5, 5}, torch::kBFloat16), !parameter_last);
      sgd.step();
    };
    const auto options = optim::SGDOptions(0.1).momentum(0.9);
    const torch::Tensor trained = make();
    optim::SGD sgd({trained}, options);
    step(sgd, trained, 2);
    Checkpoint state;
    state.add_optimizer(sgd);
    state.save(folder.path() / "a");
    write_torch_file(folder.path() / "a.pt", state_dict(sgd));
    const torch::Tensor from_checkpoint = make();
    optim::SGD first({from_checkpoint}, options);
    Checkpoint::load(folder.path() / "a").restore_optimizer(first);
    const torch::Tensor from_dict = make();
    optim::SGD second({from_dict}, options);
    load_state_dict(second, read_torch_file(folder.path() / "a.pt"));
    const auto buffer = [](optim::SGD& of, const torch::Tensor& parameter) {
      return static_cast<optim::SGDParamState&>(*of.state().at(parameter.unsafeGetTensorImpl())).momentum_buffer();
    };
    for (auto& [resumed, parameter] : {std::pair(&first, from_checkpoint), std::pair(&second, from_dict)}) {
      EXPECT_EQ(buffer(*resumed, parameter).strides(), buffer(sgd, trained).strides()) << parameter_last;
      EXPECT_TRUE(buffer(*resumed, parameter).equal(buffer(sgd, trained))) << parameter_last;
    }
  }
}

TEST(Checkpoint, ImpossibleOrdersOfMemoryAreErrors) {
  const test::ScratchFolder folder;
  const torch::Tensor parameter = torch::ones({2, 2, 2}, torch::requires_grad());
  optim::SGD sgd({parameter}, optim::SGDOptions(0.1).momentum(0.9));
  parameter.mutable_grad() = torch::ones({2, 2, 2}).permute({2, 0, 1});
  sgd.step();
  Checkpoint state;
  state.add_optimizer(sgd);
  state.save(folder.path() / "a");
  TensorFile file = read_tensor_file(folder.path() / "a");
  const std::string key = "optimizer.param.0.momentum_buffer.strides";
  EXPECT_EQ(file.metadata.at(key), "1,4,2");
  for (const char* strides :
       {"", "1", "1,2", "1,1,5", "-1,2,4", "4,2,9223372036854775807", "4,2,x", "4,2,1,", "8,2,1"}) {
    file.metadata[key] = strides;
    write_tensor_file(folder.path() / "a", file);
    expect_error(ErrorCode::kCorrupt, {key}, [&] { Checkpoint::load(folder.path() / "a").restore_optimizer(sgd); });
  }
}

TEST(Checkpoint, AnotherOptimizerIsRefusedAndLeftAlone) {
  Net net;
  optim::SGD sgd(net->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  train(net, sgd, 0, 1);
  Checkpoint state;
  expect_error(ErrorCode::kMismatch, {"no optimizer"}, [&] { state.restore_optimizer(sgd); });
  state.add_optimizer(sgd);
  optim::Adam adam(net->parameters());
  expect_error(ErrorCode::kMismatch, {"type SGD, the program's has Adam"}, [&] { state.restore_optimizer(adam); });
  optim::SGD fewer(net->fc1->parameters(), optim::SGDOptions(0.1));
  expect_error(ErrorCode::kMismatch, {}, [&] { state.restore_optimizer(fewer); });
  Net wider(9);
  optim::SGD other(wider->parameters(), optim::SGDOptions(0.5));
  expect_error(ErrorCode::kMismatch, {}, [&] { state.restore_optimizer(other); });
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_TRUE(other.state().empty());
  optim::LBFGS lbfgs(net->parameters());
  expect_error(ErrorCode::kUnsupported, {}, [&] { state.add_optimizer(lbfgs); });
}

// Also in a checkpoint that was loaded, which has those of another program.
TEST(Checkpoint, WhatIsAddedAgainLeavesNothingOfWhatWasThere) {
  const test::ScratchFolder folder;
  const auto reloaded = [&](const Checkpoint& state) {
    state.save(folder.path() / "a");
    return Checkpoint::load(folder.path() / "a");
  };
  Net net;
  optim::Adam adam(net->parameters());
  train(net, adam, 0, 1);
  Checkpoint state;
  state.add_model(*net);
  state.add_optimizer(adam);
  struct OwnScheduler {
    c10::IValue state_dict() const { return 7; }
    void load_state_dict(const c10::IValue& saved) { EXPECT_EQ(saved.toInt(), 7); }
  } own;
  state.add_scheduler(own);
  adam.state().clear();
  state.add_optimizer(adam);
  optim::Adam resumed(net->parameters());
  train(net, resumed, 0, 1);
  state = reloaded(state);
  state.restore_optimizer(resumed);
  EXPECT_TRUE(resumed.state().empty());

  train(net, adam, 0, 1);
  state.add_optimizer(adam);
  state = reloaded(state);
  const torch::nn::Linear small(2, 2);
  optim::SGD sgd(small->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  optim::StepLR schedule(sgd, 2);
  state.add_model(*small);
  state.add_optimizer(sgd);
  state.add_scheduler(schedule);
  state = reloaded(state);
  torch::nn::Linear other(2, 2);
  state.restore_model(*other);
  state.restore_optimizer(sgd);
  EXPECT_TRUE(sgd.state().empty());
  EXPECT_FALSE(read_tensor_file(folder.path() / "a").metadata.contains("scheduler.state"));
}

TEST(Checkpoint, TwoThingsOfOneNameAreRefused) {
  Checkpoint state;
  const torch::Tensor one = torch::ones({1});
  state.add_tensors("e", {{"x.y", one}});
  expect_error(ErrorCode::kInvalidArgument, {"\"e\"", "\"e.x\""}, [&] { state.add_tensors("e.x", {{"y", one}}); });
  state.add_tensors("f.x", {{"y", one}});
  expect_error(ErrorCode::kInvalidArgument, {"\"f\"", "\"f.x\""}, [&] { state.add_tensors("f", {{"x.y", one}}); });
  expect_error(ErrorCode::kNotFound, {"\"f\""}, [&] { state.get_tensors("f"); });
  state.add_tensors("e", {{"z", one}});
  EXPECT_EQ(state.get_tensors("e").size(), 1U);
  Net net;
  Net other;
  optim::Adam adam(net->parameters());
  optim::Adam second(other->parameters());
  const optim::StepLR schedule(adam, 2);
  const optim::StepLR next(second, 2);
  for (int again = 0; again < 2; ++again) {
    state.add_model(*net);
    state.add_optimizer(adam);
    state.add_scheduler(schedule);
  }
  expect_error(ErrorCode::kInvalidArgument, {"another model"}, [&] { state.add_model(*other); });
  expect_error(ErrorCode::kInvalidArgument, {"another optimizer"}, [&] { state.add_optimizer(second); });
  expect_error(ErrorCode::kInvalidArgument, {"another scheduler"}, [&] { state.add_scheduler(next); });
}

TEST(Checkpoint, AnAddThatThrowsAddsNothing) {
  struct TwoOfOneName : torch::nn::Module {
    TwoOfOneName() {
      register_module("a", torch::nn::Linear(1, 1));
      register_buffer("a.weight", torch::ones({1}));
    }
  };
  struct HoldsATensor {
    c10::IValue state_dict() const { return torch::ones({1}); }
    void load_state_dict(const c10::IValue&) {}
  };
  Net net;
  optim::Adam adam(net->parameters());
  Net other;
  Checkpoint state;
  EXPECT_ANY_THROW(state.add_model(TwoOfOneName()));
  expect_error(ErrorCode::kUnsupported, {}, [&] { state.add_optimizer(optim::LBFGS(other->parameters())); });
  expect_error(ErrorCode::kUnsupported, {}, [&] { state.add_scheduler(HoldsATensor()); });
  state.add_model(*net);
  state.add_optimizer(adam);
  state.add_scheduler(optim::StepLR(adam, 2));
}

// As before types were stored.
TEST(Checkpoint, ReadsTensorsAndValuesOfOlderFiles) {
  const test::ScratchFolder folder;
  write_tensor_file(folder.path() / "a", {{{"tensors.ema.fc.weight", torch::ones({1})}},
                                          {{"value.epoch", "3"}, {"value.own", R"({"tuple":[1,null]})"}}});
  const Checkpoint old = Checkpoint::load(folder.path() / "a");
  EXPECT_TRUE(old.get_tensors("ema").contains("fc.weight"));
  EXPECT_EQ(old.get_int("epoch"), 3);
  EXPECT_EQ(old.get_value("own").toTupleRef().elements()[0].toInt(), 1);
  write_tensor_file(folder.path() / "a", {{}, {{"value.text", "\"3\""}, {"type.text", "value"}}});
  EXPECT_EQ(Checkpoint::load(folder.path() / "a").get_int("text"), 3);
}

TEST(Checkpoint, ValuesComeBackExactly) {
  const test::ScratchFolder folder;
  Checkpoint state;
  state.set("epoch", 3);
  state.set("big", std::numeric_limits<std::int64_t>::min());
  state.set("best", 0.1);
  state.set("tiny", 5e-324);
  state.set("nothing", std::numeric_limits<double>::infinity());
  state.set("text", "size=3 epoch=1");
  state.save(folder.path() / "a");
  const Checkpoint loaded = Checkpoint::load(folder.path() / "a");
  EXPECT_EQ(loaded.get_int("epoch"), 3);
  EXPECT_EQ(loaded.get_int("big"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(loaded.get_double("best"), 0.1);
  EXPECT_EQ(loaded.get_double("tiny"), 5e-324);
  EXPECT_TRUE(std::isinf(loaded.get_double("nothing")));
  EXPECT_EQ(loaded.get_text("text"), "size=3 epoch=1");
  EXPECT_EQ(loaded.get_value("text").toStringRef(), "size=3 epoch=1");
  EXPECT_EQ(loaded.get_value("epoch").toInt(), 3);
  EXPECT_EQ(loaded.get_value("best").toDouble(), 0.1);
  state.set_value("text", "a\"b");
  state.set_value("epoch", 5);
  state.set_value("best", std::numeric_limits<double>::infinity());
  state.set_value("flag", true);
  EXPECT_EQ(state.get_text("text"), "a\"b");
  EXPECT_EQ(state.get_int("epoch"), 5);
  EXPECT_TRUE(std::isinf(state.get_double("best")));
  expect_error(ErrorCode::kCorrupt, {"\"flag\"", "get_value"}, [&] { state.get_text("flag"); });
  EXPECT_FALSE(loaded.has("epochs"));
  expect_error(ErrorCode::kNotFound, {folder.path() / "a"}, [&] { loaded.get_int("epochs"); });
  expect_error(ErrorCode::kCorrupt, {}, [&] { loaded.get_int("text"); });
  expect_error(ErrorCode::kNotFound, {}, [&] { loaded.restore_generator(); });
}

TEST(Checkpoint, InvalidGeneratorStateIsAnError) {
  const test::ScratchFolder folder;
  write_tensor_file(folder.path() / "a", {{{"generator.cpu", torch::zeros({1, 5056}, torch::kUInt8)}}, {}});
  const Checkpoint wrong = Checkpoint::load(folder.path() / "a");
  expect_error(ErrorCode::kCorrupt, {}, [&] { wrong.restore_generator(); });
  write_tensor_file(folder.path() / "a", {{{"generator.cpu", torch::zeros({7})}}, {}});
  expect_error(ErrorCode::kCorrupt, {}, [&] { Checkpoint::load(folder.path() / "a").restore_generator(); });
}

}  // namespace
}  // namespace lockstep::checkpoint
