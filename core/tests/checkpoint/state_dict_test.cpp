#include "lockstep/checkpoint/state_dict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "checkpoint/dict.h"
#include "checkpoint/pickle_file.h"
#include "checkpoint/same_values.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/nn/as_module.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

using List = c10::impl::GenericList;

void expect_error(ErrorCode code, const std::string& part, const std::function<void()>& run) {
  test::expect_error<CheckpointError>(code, {part}, run);
}

torch::nn::Sequential make_net(int outputs = 2) {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, outputs));
}

bool same_values(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  const StateDict values = state_dict(*b);
  for (const auto& entry : state_dict(*a)) {
    if (!torch::equal(*entry, values[entry.key()])) return false;
  }
  return true;
}

TEST(StateDicts, HaveTheOrderOfPython) {
  EXPECT_EQ(state_dict(*make_net()).keys(),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias",
                                      "1.running_mean", "1.running_var", "1.num_batches_tracked"}));
}

TEST(StateDicts, AreLoadedWithAndWithoutPrefixes) {
  const auto source = make_net();
  const StateDict plain = state_dict(*source);
  for (const StateDict& state : {plain, add_prefix(plain, "module."), add_prefix(plain, "_orig_mod."),
                                 add_prefix(add_prefix(plain, "_orig_mod."), "module.")}) {
    auto net = make_net();
    EXPECT_TRUE(load_state_dict(*net, state).empty());
    EXPECT_TRUE(same_values(net, source));
  }
  EXPECT_EQ(strip_prefix(plain, "1.").keys().front(), "weight");
}

TEST(StateDicts, AreConvertedToTheModel) {
  const auto source = make_net();
  auto net = make_net();
  const StateDict halves = to(state_dict(*source), torch::kHalf);
  EXPECT_EQ(halves["0.weight"].scalar_type(), torch::kHalf);
  EXPECT_EQ(halves["1.num_batches_tracked"].scalar_type(), torch::kLong);
  load_state_dict(*net, halves);
  EXPECT_TRUE(torch::equal(state_dict(*net)["0.weight"], halves["0.weight"].to(torch::kFloat)));
}

TEST(StateDicts, ThatDoNotFitAreReportedAndChangeNothingWhenStrict) {
  const auto source = make_net(/*outputs=*/5);
  StateDict state = state_dict(*source);
  state.erase("0.bias");
  state.insert("extra", torch::zeros(1));
  auto net = make_net();
  auto before = make_net();
  load_state_dict(*before, state_dict(*net));
  expect_error(ErrorCode::kMismatch,
               "missing in the file: 0.bias; unexpected in the file: extra; different shapes or dtypes: "
               "2.weight is [5, 4] in the file and [2, 4] in the model",
               [&] { load_state_dict(*net, state); });
  EXPECT_TRUE(same_values(net, before));

  const IncompatibleKeys found = load_state_dict(*net, state, /*strict=*/false);
  EXPECT_EQ(found.missing_keys, std::vector<std::string>{"0.bias"});
  EXPECT_EQ(found.unexpected_keys, std::vector<std::string>{"extra"});
  EXPECT_EQ(found.mismatched.size(), 2U);
  EXPECT_TRUE(torch::equal(state_dict(*net)["0.weight"], state["0.weight"]));
  EXPECT_TRUE(torch::equal(state_dict(*net)["2.weight"], state_dict(*before)["2.weight"]));
  expect_error(ErrorCode::kMismatch, "another model",
               [&] { load_state_dict(*net, add_prefix(state, "encoder."), /*strict=*/false); });
}

TEST(StateDicts, OfOldFilesNeedNoCountOfBatches) {
  auto net = make_net();
  StateDict state = state_dict(*make_net());
  state.erase("1.num_batches_tracked");
  EXPECT_TRUE(load_state_dict(*net, state).empty());
  state.erase("1.running_mean");
  EXPECT_THROW(load_state_dict(*net, state), CheckpointError);
}

TEST(StateDicts, GoThroughFilesOfBothFormats) {
  const test::ScratchFolder folder;
  const auto source = make_net();
  for (const char* name : {"a.pt", "a.safetensors", "a"}) {
    write_state_dict(folder.path(name), state_dict(*source));
    auto net = make_net();
    load_state_dict(*net, read_state_dict(folder.path(name)));
    EXPECT_TRUE(same_values(net, source)) << name;
  }
  EXPECT_EQ(read_tensor_file_metadata(folder.path("a.safetensors")).at("format"), "pt");
  Dict training(c10::AnyType::get(), c10::AnyType::get());
  training.insert("epoch", 3);
  training.insert("model", to_ivalue(state_dict(*source)));
  write_torch_file(folder.path("training.pt"), training);
  EXPECT_EQ(read_state_dict(folder.path("training.pt"), torch::kCPU, "model").size(), 9U);
  expect_error(ErrorCode::kMismatch, "keys are: epoch, model", [&] { read_state_dict(folder.path("training.pt")); });
  expect_error(ErrorCode::kMismatch, "no entry \"net\"",
               [&] { read_state_dict(folder.path("training.pt"), torch::kCPU, "net"); });
  expect_error(ErrorCode::kMismatch, "safetensors",
               [&] { read_state_dict(folder.path("a.safetensors"), torch::kCPU, "model"); });
  expect_error(ErrorCode::kNotFound, "none.pt", [&] { read_state_dict(folder.path("none.pt")); });
  expect_error(ErrorCode::kNotFound, "NAME.index.json", [&] { read_state_dict(folder.path()); });
  folder.write(".metadata", "");
  expect_error(ErrorCode::kUnsupported, "dcp_to_torch " + folder.path().native(),
               [&] { read_state_dict(folder.path()); });
}

class OptimizerDicts : public testing::Test {
 protected:
  OptimizerDicts() { step(adam_); }

  template <typename Optimizer>
  void step(Optimizer& optimizer) {
    optimizer.zero_grad();
    net_->forward(torch::ones({4, 3})).sum().backward();
    optimizer.step();
  }
  Dict dict() const { return state_dict(adam_).toGenericDict(); }
  static Dict group(const Dict& state) { return state.at("param_groups").toListRef()[0].toGenericDict(); }
  static Dict param(const Dict& state, int number) {
    return state.at("state").toGenericDict().at(number).toGenericDict();
  }

  torch::nn::Sequential net_ = make_net();
  torch::optim::Adam adam_{net_->parameters(), torch::optim::AdamOptions(0.01).betas({0.8, 0.9})};
};

TEST_F(OptimizerDicts, HaveTheEntriesOfPython) {
  const Dict state = dict();
  std::vector<std::string> options;
  for (const auto& entry : group(state)) options.push_back(entry.key().toStringRef());
  std::sort(options.begin(), options.end());
  EXPECT_EQ(options,
            (std::vector<std::string>{"amsgrad", "betas", "capturable", "decoupled_weight_decay", "differentiable",
                                      "eps", "foreach", "fused", "lr", "maximize", "params", "weight_decay"}));
  EXPECT_EQ(group(state).at("betas").toTupleRef().elements()[1].toDouble(), 0.9);
  EXPECT_EQ(group(state).at("params").toListRef().size(), 6U);
  EXPECT_EQ(param(state, 5).at("step").toTensor().item<float>(), 1.0F);
  EXPECT_EQ(param(state, 5).at("exp_avg").toTensor().sizes(), torch::IntArrayRef({2}));
}

TEST_F(OptimizerDicts, AreLoadedIntoTheSameKindOnly) {
  const auto other_net = make_net();
  torch::optim::Adam other(other_net->parameters());
  load_state_dict(other, dict());
  EXPECT_EQ(static_cast<torch::optim::AdamOptions&>(other.param_groups()[0].options()).lr(), 0.01);
  EXPECT_EQ(other.state().size(), 6U);
  torch::optim::SGD sgd(other_net->parameters(), 0.1);
  expect_error(ErrorCode::kMismatch, "no SGD", [&] { load_state_dict(sgd, dict()); });
  torch::optim::AdamW adamw(other_net->parameters());
  expect_error(ErrorCode::kMismatch, "is Adam, the program's is AdamW", [&] { load_state_dict(adamw, dict()); });
  torch::optim::Adam fewer(torch::nn::Linear(3, 4)->parameters());
  expect_error(ErrorCode::kMismatch, "6", [&] { load_state_dict(fewer, dict()); });
  torch::optim::Adam larger(make_net(7)->parameters());
  expect_error(ErrorCode::kMismatch, "shape", [&] { load_state_dict(larger, dict()); });
  EXPECT_EQ(larger.state().size(), 0U);
}

// As torch.distributed.checkpoint.state_dict.get_optimizer_state_dict() has them.
TEST_F(OptimizerDicts, MayNameTheParameters) {
  Dict state = dict();
  List names(c10::AnyType::get());
  Dict named(c10::AnyType::get(), c10::AnyType::get());
  for (std::int64_t i = 0; i < 6; ++i) {
    names.push_back("p" + std::to_string(i));
    named.insert("p" + std::to_string(i), param(state, static_cast<int>(i)));
  }
  group(state).insert_or_assign("params", names);
  state.insert_or_assign("state", named);
  torch::optim::Adam other(make_net()->parameters());
  load_state_dict(other, state);
  const Dict loaded = state_dict(other).toGenericDict();
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(torch::equal(param(loaded, i).at("exp_avg").toTensor(), param(dict(), i).at("exp_avg").toTensor()));
  }
}

// Python's dcp_to_torch leaves out empty dicts, such as the state of SGD without momentum.
TEST_F(OptimizerDicts, MayHaveNoState) {
  torch::optim::SGD saved(net_->parameters(), 0.25);
  step(saved);
  Dict state = state_dict(saved).toGenericDict();
  EXPECT_EQ(state.erase("state"), 1U);
  torch::optim::SGD other(make_net()->parameters(), 0.5);
  load_state_dict(other, state);
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(other.state().size(), 0U);
}

TEST_F(OptimizerDicts, WithImpossibleEntriesAreRefused) {
  using Change = std::function<void(Dict&)>;
  const auto expect_refusal = [&](ErrorCode code, const std::string& part, const Change& change) {
    Dict state = dict();
    change(state);
    torch::optim::Adam other(make_net()->parameters());
    expect_error(code, part, [&] { load_state_dict(other, state); });
    EXPECT_EQ(other.state().size(), 0U);
  };
  expect_refusal(ErrorCode::kMismatch, "param_groups", [](Dict& state) { EXPECT_EQ(state.erase("param_groups"), 1U); });
  expect_refusal(ErrorCode::kMismatch, "no dict", [](Dict& state) { state.insert_or_assign("state", 3); });
  expect_refusal(ErrorCode::kUnsupported, "maximize",
                 [](Dict& state) { group(state).insert_or_assign("maximize", true); });
  expect_refusal(ErrorCode::kMismatch, "params", [](Dict& state) { EXPECT_EQ(group(state).erase("params"), 1U); });
  expect_refusal(ErrorCode::kCorrupt, "betas", [](Dict& state) { group(state).insert_or_assign("betas", 1.0); });
  expect_refusal(ErrorCode::kCorrupt, "lr", [](Dict& state) { EXPECT_EQ(group(state).erase("lr"), 1U); });
  expect_refusal(ErrorCode::kCorrupt, "eps",
                 [](Dict& state) { group(state).insert_or_assign("eps", std::numeric_limits<double>::quiet_NaN()); });
  expect_refusal(ErrorCode::kCorrupt, "step", [](Dict& state) { param(state, 1).insert_or_assign("step", -1); });
  expect_refusal(ErrorCode::kCorrupt, "step", [](Dict& state) { param(state, 1).insert_or_assign("step", 1.5); });
  expect_refusal(ErrorCode::kCorrupt, "exp_avg", [](Dict& state) { EXPECT_EQ(param(state, 1).erase("exp_avg"), 1U); });
  expect_refusal(ErrorCode::kMismatch, "shape",
                 [](Dict& state) { param(state, 1).insert_or_assign("exp_avg", torch::zeros(3)); });
  expect_refusal(ErrorCode::kMismatch, "two states of parameter 1",
                 [](Dict& state) { state.at("state").toGenericDict().insert("1", param(state, 1)); });
  expect_refusal(ErrorCode::kMismatch, "no group", [](Dict& state) {
    state.at("state").toGenericDict().insert(77, Dict(c10::AnyType::get(), c10::AnyType::get()));
  });
}

// What get_optimizer_state_dict() with flatten_optimizer_state_dict=True returns.
TEST_F(OptimizerDicts, AreRefusedWhenTheyAreFlat) {
  Dict flat = make_dict();
  flat.insert("state.weight.exp_avg", torch::zeros(3));
  flat.insert("param_groups.weight.lr", 0.1);
  torch::optim::Adam optimizer(make_net()->parameters());
  expect_error(ErrorCode::kMismatch, "set_optimizer_state_dict()", [&] { load_state_dict(optimizer, flat); });
}

// As Hugging Face's libraries write large models.
TEST(ShardedStateDicts, AreReadAsOne) {
  const test::ScratchFolder folder;
  const StateDict state = state_dict(*make_net());
  StateDict first;
  StateDict second;
  std::string map;
  for (const auto& entry : state) {
    const bool in_first = first.size() < 4;
    (in_first ? first : second).insert(entry.key(), *entry);
    map += (map.empty() ? "\"" : ",\"") + entry.key() + "\":\"" + (in_first ? "1.safetensors" : "2.safetensors") + "\"";
  }
  write_state_dict(folder.path("1.safetensors"), first);
  write_state_dict(folder.path("2.safetensors"), second);
  const std::string index = "model.safetensors.index.json";
  folder.write(index, R"({"metadata":{"total_size":1,"more":[{}]},"weight_map":{)" + map + "}}");
  for (const std::string& path : {std::string(folder.path()), folder.path(index)}) {
    auto net = make_net();
    EXPECT_TRUE(load_state_dict(*net, read_state_dict(path)).empty());
    EXPECT_TRUE(torch::equal(net->parameters()[0], state["0.weight"]));
  }
  EXPECT_NE(verify(folder.path()).lines[0].find("good: state dict in several files, 9 tensors"), std::string::npos);
  const auto refused = [&](const std::string& text, const std::string& part) {
    folder.write(index, text);
    expect_error(ErrorCode::kCorrupt, part, [&] { read_state_dict(folder.path()); });
  };
  refused(R"({"weight_map":{"0.weight":"../1.safetensors"}})", "names the file");
  refused(R"({"weight_map":{"0.weight":"2.safetensors"}})", "is not in 2.safetensors");
  refused(R"({"weight_map":{"0.weight":7}})", "no text");
  refused("{}", "weight_map");
  refused("[" + std::string(100'000, '['), "no JSON");
}

// Each file asks for 240 MB, which a file alone may.
TEST(ShardedStateDicts, ShareTheMemoryOfTheirFiles) {
  const test::ScratchFolder folder;
  const std::string pickle = "\x80\x02}X\x0c\0\0\0_extra_state]("s + std::string(1'300'000, ']') + "es.";
  for (const char* name : {"1.bin", "2.bin"}) write_pickle_file(folder.path(name), pickle);
  const std::string index = "pytorch_model.bin.index.json";
  folder.write(index, R"({"weight_map":{"_extra_state":"1.bin"}})");
  EXPECT_TRUE(read_state_dict(folder.path()).is_empty());
  folder.write(index, R"({"weight_map":{"_extra_state":"1.bin","a._extra_state":"2.bin"}})");
  expect_error(ErrorCode::kCorrupt, "2.bin: damaged", [&] { read_state_dict(folder.path()); });
  std::filesystem::create_directory(folder.path("folder"));
  folder.write(index, R"({"weight_map":{"_extra_state":"folder"}})");
  expect_error(ErrorCode::kCorrupt, "is no single file", [&] { read_state_dict(folder.path()); });
}

// The file that is there stays.
TEST(StateDicts, WithAnUndefinedTensorAreNotWritten) {
  const test::ScratchFolder folder;
  StateDict state;
  state.insert("w", torch::Tensor());
  for (const char* name : {"a.pt", "a.safetensors"}) {
    write_state_dict(folder.path(name), state_dict(*make_net()));
    expect_error(ErrorCode::kInvalidArgument, "tensor \"w\" is undefined",
                 [&] { write_state_dict(folder.path(name), state); });
    EXPECT_EQ(read_state_dict(folder.path(name)).size(), 9U);
  }
}

TEST(StateDicts, LeaveOutExtraStatesOfPython) {
  const test::ScratchFolder folder;
  Dict state = make_dict();
  state.insert("weight", torch::ones({2, 3}));
  state.insert("bias", torch::ones({2}));
  state.insert("_extra_state", "bytes");
  state.insert("inner._extra_state", torch::ones({1}));
  write_torch_file(folder.path("a.pt"), state);
  torch::nn::Linear net(3, 2);
  EXPECT_TRUE(load_state_dict(*net, read_state_dict(folder.path("a.pt"))).empty());
}

// A model of another kind, which puts other tensors in the place of its own.
struct ReplacingModel {
  std::vector<NamedParameter> named_parameters() const { return {{"weight", weight}}; }
  std::vector<NamedParameter> named_buffers() const { return {{"mean", mean}}; }
  torch::Tensor weight = torch::zeros({2}).requires_grad_();
  torch::Tensor mean = torch::zeros({2});
};

TEST(StateDicts, HaveTheTensorsThatAModelHasNow) {
  ReplacingModel model;
  const auto view = as_module(model);
  torch::nn::Module around;
  around.register_module("inner", as_module(model));
  Checkpoint kept;
  kept.add_model(*view);
  model.weight = torch::ones({2}).requires_grad_();
  model.mean = torch::full({2}, 3.0);
  for (const StateDict& state : {state_dict(*view), strip_prefix(state_dict(around), "inner.")}) {
    EXPECT_TRUE(state["weight"].is_alias_of(model.weight));
    EXPECT_TRUE(state["mean"].is_alias_of(model.mean));
  }
  kept.add_model(*view);
  const Checkpoint saved = kept.clone();
  model.weight = torch::full({2}, 5.0).requires_grad_();
  model.mean = torch::full({2}, 6.0);
  saved.restore_model(*view);
  EXPECT_TRUE(torch::equal(model.weight, torch::ones({2})));
  EXPECT_TRUE(torch::equal(model.mean, torch::full({2}, 3.0)));
}

}  // namespace
}  // namespace lockstep::checkpoint
