// Models that are no torch::nn::Module: scripted ones, objects with named tensors, AnyModule. What Python makes is in
// tests/parity/scripted_parity_test.cpp. 2 s of a core.
#include "lockstep/nn/as_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

class AsModuleMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AsModuleMulti, testing::Values(1, 2, 3));

// A functional model: tensors in a map, by names with dots.
struct MappedModel {
  std::map<std::string, torch::Tensor> tensors{{"first.weight", torch::randn({3, 4}).requires_grad_()},
                                               {"last.weight", torch::randn({4, 2}).requires_grad_()}};
  torch::Tensor count = torch::zeros({1});
  bool training = true;

  const std::map<std::string, torch::Tensor>& named_parameters() const { return tensors; }
  std::vector<NamedParameter> named_buffers() const { return {{"count", count}}; }
  void train(bool on) { training = on; }
  bool is_training() const { return training; }
  torch::Tensor forward(const torch::Tensor& x) {
    if (training) count.add_(get_rank() + 1);
    return torch::tanh(x.matmul(tensors.at("first.weight"))).matmul(tensors.at("last.weight"));
  }
};

struct TwoNames {
  std::vector<std::pair<std::string, torch::Tensor>> named;
  const auto& named_parameters() const { return named; }
};

// Its functions return copies of what it computes with, of a parameter or of a buffer.
struct Copies {
  torch::Tensor weight = torch::ones({2}).requires_grad_();
  torch::Tensor count = torch::zeros({1});
  bool of_parameter = true;

  std::vector<NamedParameter> named_parameters() const {
    return {{"weight", of_parameter ? weight.detach().clone().requires_grad_() : weight}};
  }
  std::vector<NamedParameter> named_buffers() const { return {{"count", of_parameter ? count : count.clone()}}; }
};

torch::jit::Module scripted_line() {
  torch::jit::Module inner("Inner");
  inner.register_attribute("training", c10::BoolType::get(), true);
  inner.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), /*is_buffer=*/false);
  inner.register_buffer("running_mean", torch::zeros({2}));
  inner.register_buffer("running_var", torch::ones({2}));
  inner.define("def forward(self, x):\n  return x.matmul(self.weight)\n");
  torch::jit::Module outer("Outer");
  outer.register_attribute("training", c10::BoolType::get(), true);
  outer.register_parameter("bias", torch::zeros({2}).requires_grad_(), /*is_buffer=*/false);
  outer.register_module("inner", inner);
  outer.define("def forward(self, x):\n  return self.inner.forward(x) + self.bias\n");
  return outer;
}

TEST(AsModule, HasTheNamesAndTheModeOfTheModel) {
  torch::jit::Module net = scripted_line();
  const auto model = as_module(net);
  EXPECT_EQ(model->named_parameters().keys(), (std::vector<std::string>{"bias", "inner.weight"}));
  EXPECT_EQ(model->named_buffers().keys(), (std::vector<std::string>{"inner.running_mean", "inner.running_var"}));
  EXPECT_TRUE(model->named_parameters()["bias"].is_same(net.attr("bias").toTensor()));
  net.attr("inner").toModule().eval();
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->named_children()["inner"]->is_training());
  model->eval();
  EXPECT_FALSE(net.is_training());

  MappedModel mapped;
  const auto of_map = as_module(mapped);
  EXPECT_EQ(of_map->named_parameters().keys(), (std::vector<std::string>{"first.weight", "last.weight"}));
  EXPECT_EQ(of_map->named_buffers().keys(), (std::vector<std::string>{"count"}));
  of_map->eval();
  EXPECT_FALSE(mapped.training);
  EXPECT_FALSE(of_map->is_training());

  const auto linear = std::make_shared<torch::nn::LinearImpl>(2, 2);
  EXPECT_EQ(as_module(linear), linear);
  EXPECT_EQ(as_module(torch::nn::AnyModule(linear)), linear);
  EXPECT_EQ(as_module(torch::nn::Linear(nullptr)), nullptr);
  EXPECT_EQ(as_module(torch::nn::AnyModule()), nullptr);
}

TEST_P(AsModuleMulti, TrainsObjectsWithNamedTensors) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(number);
    const auto model = std::make_shared<MappedModel>();
    DistributedDataParallel ddp(model);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
    MappedModel twin;
    for (const auto& [name, tensor] : model->tensors) twin.tensors[name] = tensor.detach().clone().requires_grad_();
    for (int step = 0; step < 4; ++step) {
      const auto view = as_module(twin);
      view->zero_grad();
      as_module(model)->zero_grad();
      const torch::Tensor x = random_input({5, 3}, step);
      ddp.forward(x).square().mean().backward();
      twin.forward(x).square().mean().backward();
      average_gradients(*view);
      expect_same_gradients(*as_module(model), *view, "step " + std::to_string(step));
      EXPECT_EQ(clip_grad_norm_(*as_module(model), 0.5), clip_grad_norm_(*view, 0.5));
      optimizer.step();
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : view->parameters()) parameter.sub_(parameter.grad(), 0.1);
      // Another tensor in the place of a parameter takes part from the next pass on.
      if (step == 2) model->tensors["last.weight"] = model->tensors["last.weight"].detach().clone().requires_grad_();
    }
    expect_equal_on_all_ranks({model->count}, "count");
    EXPECT_EQ(model->count.item<float>(), 4) << "rank 0 counts 1 in each pass";
  });
}

TEST_P(AsModuleMulti, TrainsScriptedModelsAndAnyModules) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(number);
    torch::jit::Module net = scripted_line();
    DistributedDataParallel ddp(net);
    torch::nn::AnyModule any(torch::nn::Linear(3, 2));
    DistributedDataParallel any_ddp(any);
    DistributedDataParallel line(torch::nn::Sequential(torch::nn::Linear(3, 2)));
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = random_input({5, 3}, step);
      for (const auto& model : {as_module(net), as_module(any), as_module(line.module())}) model->zero_grad();
      ddp->forward({x}).toTensor().square().mean().backward();
      any_ddp.forward(x).square().mean().backward();
      line.forward(x).square().mean().backward();
      for (const auto& model : {as_module(net), as_module(any), as_module(line.module())}) {
        std::vector<torch::Tensor> gradients;
        for (const torch::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
        expect_equal_on_all_ranks(gradients, "gradient");
      }
    }
  });
}

// Other tensors of a scripted model, wherever they are in it, take part from the next pass on.
TEST_P(AsModuleMulti, NoticesOtherTensorsOfScriptedModels) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::jit::Module net = scripted_line();
    DistributedDataParallel ddp(net);
    const auto expect_trained = [&](const std::string& what) {
      ddp->forward({random_input({5, 3}, 9 + number)}).toTensor().square().mean().backward();
      std::vector<torch::Tensor> all;
      for (const torch::Tensor& parameter : net.parameters()) all.insert(all.end(), {parameter, parameter.grad()});
      for (const torch::Tensor& buffer : net.buffers()) all.push_back(buffer);
      expect_equal_on_all_ranks(all, what);
    };
    const auto own = [&](torch::IntArrayRef shape) { return torch::full(shape, number + 1.0F); };
    net.setattr("bias", own({2}).requires_grad_());
    expect_trained("a parameter");
    torch::jit::Module inner = net.attr("inner").toModule();
    inner.setattr("weight", own({3, 2}).requires_grad_());
    expect_trained("a parameter of a submodule");
    inner.setattr("running_mean", own({2}));
    expect_trained("a buffer of a submodule");
    torch::jit::Module other = inner.deepcopy();
    other.setattr("weight", own({3, 2}).requires_grad_());
    net.setattr("inner", other._ivalue());
    expect_trained("a submodule");
    other.register_buffer("count", own({1}));
    expect_trained("a buffer more");
    other.attr("weight").toTensor().mutable_grad().reset();
    other.attr("weight").toTensor().set_requires_grad(false);
    ddp->forward({random_input({5, 3}, 1)}).toTensor().square().mean().backward();
    EXPECT_FALSE(other.attr("weight").toTensor().grad().defined());
    expect_equal_on_all_ranks({net.attr("bias").toTensor().grad()}, "a frozen parameter");
    other.attr("weight").toTensor().set_requires_grad(true);
    expect_trained("the same parameter, trained again");
  });
}

TEST_P(AsModuleMulti, RefusesOnEveryRankWhatOneRankCannotTrain) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const auto wrong = get_world_size() - 1 == number;
    const torch::Tensor weight = torch::ones({2}).requires_grad_();
    const auto refuse = [&](TwoNames bad, const std::vector<std::string>& parts) {
      const TwoNames good{{{"weight", weight}}};
      expect_in(error_of([&] { DistributedDataParallel<TwoNames> ddp(wrong ? std::move(bad) : TwoNames(good)); }),
                parts);
    };
    refuse({{{"weight", weight}, {"weight", torch::ones({3})}}}, {"two tensors of the model are named 'weight'"});
    refuse({{{"a..b", weight}}}, {"expected a name for every tensor", "'a..b'"});
    refuse({{{"weight", weight * 2}}}, {"parameter 'weight' is the result of an operation (MulBackward", "detach()"});
    refuse({}, {"this model has no parameter that requires a gradient"});

    for (const bool of_parameter : {true, false}) {
      const auto copies = std::make_shared<Copies>();
      copies->of_parameter = of_parameter;
      expect_in(error_of([&] { DistributedDataParallel ddp(copies); }),
                {of_parameter ? "named_parameters() of the model returned another tensor 'weight'"
                              : "named_buffers() of the model returned another tensor 'count'",
                 "the tensors that the model computes with"});
    }
  });
}

TEST(AsModule, ListsTiedParametersOnce) {
  torch::jit::Module net = scripted_line();
  net.register_parameter("tied", net.attr("bias").toTensor(), /*is_buffer=*/false);
  const auto model = as_module(net);
  EXPECT_EQ(model->parameters().size(), 3);
  EXPECT_EQ(distinct_parameters(*model).size(), 2);
}

TEST(AsModule, CopiesScriptedModelsForDataParallel) {
  torch::jit::Module net = scripted_line();
  DataParallel parallel(net, {.cpu_replicas = 2});
  const torch::Tensor x = torch::randn({6, 3});
  const torch::Tensor out = parallel.apply(
      [](torch::jit::Module& replica, const torch::Tensor& part) { return replica.forward({part}).toTensor(); }, x);
  out.square().mean().backward();
  const torch::Tensor bias = net.attr("bias").toTensor();
  const torch::Tensor ours = bias.grad().clone();
  bias.mutable_grad() = torch::Tensor();
  net.forward({x}).toTensor().square().mean().backward();
  EXPECT_TRUE(torch::allclose(bias.grad(), ours));
}

TEST(AsModule, SaysThatLayersOfOtherModelsCannotBeSynchronised) {
  torch::jit::Module net = scripted_line();
  const auto model = as_module(net);
  expect_in(error_of([&] { convert_sync_batchnorm(*model); }),
            {"'inner' is a batch normalisation of a scripted model", "GroupNorm", "`except`"});
  EXPECT_TRUE(convert_sync_batchnorm(*model, nullptr, {"inner"}).empty());
}

}  // namespace
}  // namespace lockstep::test
