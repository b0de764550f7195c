// Models that put other tensors in the place of their parameters and buffers: before they are wrapped, between steps,
// and in a forward pass. The judge is one process that computes the passes of all ranks with plain autograd, and gives
// all of them rank 0's buffer, as PyTorch does. 4 s of a core.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/nn/as_module.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "nn/ddp/module_watch.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

constexpr double kCentredRate = 0.1;

Tensor pair_of(double value) {
  return torch::full({2}, value, torch::kDouble);
}

Tensor first_weight() {
  return torch::tensor({0.5, -0.25}, torch::kDouble).requires_grad_();
}

// One forward pass puts another tensor in the place of the buffer, and computes with it.
Tensor next_centre(const Tensor& mean, const Tensor& x) {
  return 0.9 * mean + 0.1 * x.mean(0);
}
Tensor centred_loss(const Tensor& x, const Tensor& mean, const Tensor& weight) {
  return (x - mean).matmul(weight).square().mean();
}

// The reference is the place of the registered buffer.
struct CentredModuleImpl : torch::nn::Module {
  Tensor run(const Tensor& x) {
    mean = next_centre(mean, x);
    return centred_loss(x, mean, weight);
  }
  Tensor weight = register_parameter("weight", first_weight());
  Tensor& mean = register_buffer("mean", pair_of(0));
};

struct CentredStruct {
  std::vector<NamedParameter> named_parameters() const { return {{"weight", weight}}; }
  std::vector<NamedParameter> named_buffers() const { return {{"mean", mean}}; }
  Tensor run(const Tensor& x) {
    mean = next_centre(mean, x);
    return centred_loss(x, mean, weight);
  }
  Tensor weight = first_weight();
  Tensor mean = pair_of(0);
};

torch::jit::Module centred_script() {
  torch::jit::Module net("Centred");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_parameter("weight", first_weight(), /*is_buffer=*/false);
  net.register_buffer("mean", pair_of(0));
  net.define(
      "def run(self, x):\n  self.mean = 0.9 * self.mean + 0.1 * x.mean(0)\n"
      "  return (x - self.mean).matmul(self.weight).square().mean()\n");
  return net;
}

// What the tests do with each kind of model.
template <typename Model>
struct Centred {
  explicit Centred(Model given) : model(std::move(given)) {}
  Tensor weight() const { return model->weight; }
  Tensor mean() const { return model->mean; }
  void put_mean(const Tensor& mean) { model->mean = mean; }
  static Tensor run(DistributedDataParallel<Model>& ddp, const Tensor& x) { return ddp->run(x); }
  Model model;
};
template <>
struct Centred<torch::jit::Module> {
  explicit Centred(torch::jit::Module given) : model(std::move(given)) {}
  Tensor weight() const { return model.attr("weight").toTensor(); }
  Tensor mean() const { return model.attr("mean").toTensor(); }
  void put_mean(const Tensor& mean) { model.setattr("mean", mean); }
  static Tensor run(DistributedDataParallel<torch::jit::Module>& ddp, const Tensor& x) {
    return ddp->get_method("run")({x}).toTensor();
  }
  torch::jit::Module model;
};

struct CentredSamples {
  // With `gaps` rank s % 5 has none in a part of step s.
  bool has(int rank, int step, int part) const { return !gaps || rank != step % 5 || part != step % parts; }
  Tensor of(int rank, int step, int part) const {
    return torch::randn({4, 2}, at::detail::createCPUGenerator(1000 * step + 10 * rank + part), torch::kDouble);
  }
  int parts = 1;
  bool gaps = false;
};

// All ranks in one process.
struct CentredJudge {
  explicit CentredJudge(int the_ranks) : ranks(the_ranks) {}

  void step(int number, const CentredSamples& samples) {
    Tensor sum = torch::zeros_like(weight);
    bool any = false;
    Tensor of_rank_0;
    for (int rank = 0; rank < ranks; ++rank) {
      Tensor own = mean;
      for (int part = 0; part < samples.parts; ++part) {
        if (!samples.has(rank, number, part)) continue;
        const Tensor x = samples.of(rank, number, part);
        own = next_centre(own, x);
        sum += torch::autograd::grad({centred_loss(x, own, weight)}, {weight})[0];
        any = true;
      }
      if (rank == 0) of_rank_0 = own;
    }
    mean = of_rank_0;
    const torch::NoGradGuard no_grad;
    if (any) weight -= kCentredRate * sum / ranks;
  }

  int ranks;
  Tensor weight = first_weight();
  Tensor mean = pair_of(0);
};

template <typename Model>
void train_beside_judge(const char* name, const std::function<Model()>& make, const CentredSamples& samples) {
  const int rank = get_rank();
  Centred<Model> net(make());
  CentredJudge judge(get_world_size());
  net.put_mean(pair_of(3 + rank));  // before it is wrapped
  judge.mean = pair_of(3);
  DistributedDataParallel<Model> ddp(net.model);
  for (int step = 0; step < 6; ++step) {
    if (step == 2 || step == 3) {  // between steps
      net.put_mean(pair_of(10 * step + rank));
      judge.mean = pair_of(10 * step);
    }
    net.weight().mutable_grad().reset();
    for (int part = 0; part < samples.parts; ++part) {
      const auto guard = ddp.no_sync(part + 1 < samples.parts);
      if (!samples.has(rank, step, part)) {
        ddp.pass_without_input();
      } else if (step % 2 == 0) {
        Centred<Model>::run(ddp, samples.of(rank, step, part)).backward();
      } else {  // the call is over before the backward pass
        const Tensor loss = Centred<Model>::run(ddp, samples.of(rank, step, part));
        loss.backward();
      }
    }
    const Tensor gradient = net.weight().grad();
    if (gradient.defined()) net.weight().detach().sub_(kCentredRate * gradient);
    judge.step(step, samples);
    const std::string where = fmt::format("{}, {} parts, step {}, rank {}", name, samples.parts, step, rank);
    EXPECT_TRUE(torch::allclose(net.weight(), judge.weight, 1e-12, 1e-12)) << where;
    EXPECT_TRUE(torch::allclose(net.mean(), judge.mean, 1e-12, 1e-12)) << where << ": " << net.mean() << judge.mean;
    EXPECT_TRUE(with_present_tensors(*as_module(net.model)).named_buffers()["mean"].is_same(net.mean())) << where;
  }
}

class ReplacedTensorsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReplacedTensorsMulti, testing::Values(1, 2, 3));

TEST_P(ReplacedTensorsMulti, BuffersAreRankZerosWheneverTheyAreReplaced) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const CentredSamples& samples :
         {CentredSamples{1, false}, CentredSamples{2, false}, CentredSamples{1, true}, CentredSamples{3, true}}) {
      using OfModule = std::shared_ptr<CentredModuleImpl>;
      using OfStruct = std::shared_ptr<CentredStruct>;
      train_beside_judge<OfModule>(
          "module", [] { return std::make_shared<CentredModuleImpl>(); }, samples);
      train_beside_judge<OfStruct>(
          "struct", [] { return std::make_shared<CentredStruct>(); }, samples);
      train_beside_judge<torch::jit::Module>("scripted", centred_script, samples);
    }
  });
}

// Models of other kinds inside a module.
struct AroundModelsImpl : torch::nn::Module {
  AroundModelsImpl(const torch::jit::Module& the_script, std::shared_ptr<CentredStruct> the_object)
      : script(the_script), object(std::move(the_object)) {
    register_module("script", as_module(script));
    register_module("object", as_module(object));
  }
  Tensor run(const Tensor& x) { return script.get_method("run")({x}).toTensor() + object->run(x); }
  torch::jit::Module script;
  std::shared_ptr<CentredStruct> object;
};

TEST_P(ReplacedTensorsMulti, ParametersInsideOfAnotherModuleAreNoticed) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const auto net = std::make_shared<AroundModelsImpl>(centred_script(), std::make_shared<CentredStruct>());
    DistributedDataParallel ddp(net);
    ExponentialMovingAverage average(*net, {.decay = 0.5});
    for (int step = 0; step < 4; ++step) {
      if (step == 1) net->script.setattr("weight", (pair_of(2) + number).requires_grad_());
      if (step == 2) net->object->weight = (pair_of(3) + number).requires_grad_();
      const std::vector<Tensor> trained{net->script.attr("weight").toTensor(), net->object->weight};
      for (const Tensor& one : trained) one.mutable_grad().reset();
      ddp->run(random_input({4, 2}, step).to(torch::kDouble)).backward();
      const std::string where = fmt::format("step {}", step);
      std::vector<Tensor> found = trained;
      for (const Tensor& one : trained) found.push_back(one.grad());
      found.insert(found.end(), {net->script.attr("mean").toTensor(), net->object->mean});
      expect_equal_on_all_ranks(found, where);
      const double norm = torch::cat({trained[0].grad(), trained[1].grad()}).norm().item<double>();
      EXPECT_NEAR(clip_grad_norm_(*net, 1e9), norm, 1e-9 * norm) << where;
      average.update();
      const auto parameters = ddp.parameters();
      EXPECT_TRUE(parameters[0].is_same(trained[0]) && parameters[1].is_same(trained[1])) << where;
      for (const auto& [name, value] : average.tensors()) EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
    }
  });
}

// Neither the model nor the wrapper has run since.
TEST_P(ReplacedTensorsMulti, AnOptimizerMadeRightAfterAReplacementStepsTheNewParameter) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::jit::Module net = centred_script();
    const std::shared_ptr<torch::nn::Module> view = as_module(net);
    net.setattr("weight", (pair_of(1) + number).requires_grad_());  // before it is wrapped
    DistributedDataParallel ddp(net);
    EXPECT_TRUE(ddp.parameters().at(0).is_same(net.attr("weight").toTensor()));
    for (int step = 0; step < 3; ++step) {
      const Tensor replaced = (pair_of(step) + number).requires_grad_();
      net.setattr("weight", replaced);
      torch::optim::SGD sgd(ddp.parameters(), kCentredRate);
      ddp->get_method("run")({random_input({4, 2}, step).to(torch::kDouble)}).toTensor().backward();
      const Tensor before = pair_of(step);  // rank 0's
      sgd.step();
      const std::string where = fmt::format("step {}", step);
      ASSERT_TRUE(replaced.grad().defined()) << where;
      EXPECT_TRUE(torch::allclose(replaced, before - kCentredRate * replaced.grad(), 1e-12, 1e-12)) << where;
      expect_equal_on_all_ranks({replaced}, where);
    }
  });
}

// Each pass turns the strides of its buffer.
struct TurningStruct {
  std::vector<NamedParameter> named_parameters() const { return {{"weight", weight}}; }
  std::vector<NamedParameter> named_buffers() const { return {{"mean", mean}}; }
  Tensor run(const Tensor& x) {
    mean = next_centre(mean, x).t();
    return centred_loss(x, mean, weight);
  }
  Tensor weight = first_weight();
  Tensor mean = torch::arange(4, torch::kDouble).reshape({2, 2});
};

// A rank without samples does not know of the other strides, and must not wait.
TEST_P(ReplacedTensorsMulti, ABufferOfOtherStridesStandsForTheFirst) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const auto net = std::make_shared<TurningStruct>();
    Tensor judge = net->mean.clone();
    DistributedDataParallel ddp(net);
    for (int step = 0; step < 3; ++step) {
      judge = next_centre(judge, random_input({2, 2}, step, 0).to(torch::kDouble)).t();
      if (number == 2) {
        ddp.pass_without_input();
      } else {
        ddp->run(random_input({2, 2}, step).to(torch::kDouble)).backward();
      }
      const std::string where = fmt::format("step {}", step);
      EXPECT_TRUE(torch::allclose(net->mean, judge, 1e-12, 1e-12)) << where << net->mean << judge;
      expect_equal_on_all_ranks({net->weight.grad()}, where);
    }
  });
}

TEST(ReplacedTensors, DataParallelTrainsTheNewParameter) {
  for (const int replicas : {1, 2}) {
    torch::jit::Module net = centred_script();
    DataParallel parallel(net, {.cpu_replicas = replicas});
    const auto run = [](torch::jit::Module& replica, const Tensor& part) {
      return (part.matmul(replica.attr("weight").toTensor())).square();
    };
    const Tensor x = random_input({6, 2}, 1, 0).to(torch::kDouble);
    parallel.apply(run, x).mean().backward();
    const Tensor old = net.attr("weight").toTensor();
    const Tensor replaced = pair_of(2).requires_grad_();
    net.setattr("weight", replaced);
    EXPECT_TRUE(parallel.parameters().at(0).is_same(replaced));
    old.mutable_grad().reset();
    parallel.apply(run, x).mean().backward();
    EXPECT_FALSE(old.grad().defined()) << replicas;
    const Tensor expected = torch::autograd::grad({x.matmul(replaced).square().mean()}, {replaced})[0];
    EXPECT_TRUE(torch::allclose(replaced.grad(), expected)) << replicas;
  }
}

// A replica's copy of the model puts other buffers in the place of its own: as in PyTorch they are lost, and each pass
// begins with the model's.
TEST(ReplacedTensors, ReplicasOfDataParallelBeginWithTheModelsBuffers) {
  torch::jit::Module net = centred_script();
  DataParallel parallel(net, {.cpu_replicas = 2});
  const Tensor x = random_input({6, 2}, 1, 0).to(torch::kDouble);
  const auto run = [](torch::jit::Module& replica, const Tensor& part) {
    return replica.get_method("run")({part}).toTensor();
  };
  const Tensor first = parallel.apply(run, x).detach();
  EXPECT_TRUE(torch::equal(parallel.apply(run, x).detach(), first));
  net.setattr("mean", pair_of(7));
  EXPECT_FALSE(torch::allclose(parallel.apply(run, x).detach(), first));
}

// One block of memory, of which each call makes views.
struct ViewsOfABlock {
  std::vector<NamedParameter> named_parameters() const { return {{"weight", weight}}; }
  std::vector<NamedParameter> named_buffers() const {
    return {{"mean", block[0]}, {"transposed", block.slice(0, 1, 3).t()}, {"detached", count.detach()}};
  }
  Tensor run(const Tensor& x) {
    block.add_(get_rank() + 1);
    count.add_(get_rank() + 1);
    return centred_loss(x, block[0], weight);
  }
  Tensor weight = first_weight();
  Tensor block = torch::zeros({3, 2}, torch::kDouble);
  Tensor count = torch::zeros({1});
};

TEST_P(ReplacedTensorsMulti, ViewsOfTheModelsMemoryAreBuffers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const auto net = std::make_shared<ViewsOfABlock>();
    DistributedDataParallel ddp(net);
    for (int step = 1; step <= 4; ++step) {
      ddp->run(random_input({4, 2}, step).to(torch::kDouble)).backward();
      EXPECT_TRUE(torch::equal(net->block, torch::full({3, 2}, step, torch::kDouble))) << net->block;
      EXPECT_EQ(net->count.item<float>(), static_cast<float>(step));
      if (step == 2) net->block = net->block.clone();  // other memory, on all ranks
    }
    const auto model = as_module(net);
    net->block.fill_(9);
    EXPECT_EQ(model->named_buffers()["mean"].sum().item<double>(), 18);
  });
}

TEST(ModuleWatch, NoticesOtherTensorsAndPartsAndNothingElse) {
  struct Part : torch::nn::Module {
    Tensor weight = register_parameter("weight", first_weight());
    Tensor& mean = register_buffer("mean", Tensor());  // the place of the buffer
  };
  struct Whole : torch::nn::Module {
    std::shared_ptr<Part> first = register_module("first", std::make_shared<Part>());
    std::shared_ptr<Part> last = register_module("last", std::make_shared<Part>());
    torch::jit::Module script = centred_script();
    std::shared_ptr<torch::nn::Module> view = register_module("view", as_module(script));
  };
  Whole whole;
  nn_detail::ModuleWatch watch;
  EXPECT_FALSE(watch.is_current(whole));
  const auto expect_noticed = [&](const char* what) {
    EXPECT_FALSE(watch.is_current(whole)) << what;
    watch.look(whole);
    EXPECT_TRUE(watch.is_current(whole)) << what;
  };
  expect_noticed("new");
  whole.first->mean = pair_of(1);
  expect_noticed("a buffer that was undefined");
  whole.first->mean.add_(1);
  whole.last->weight.detach().zero_();
  whole.last->weight.set_requires_grad(false);
  EXPECT_TRUE(watch.is_current(whole));
  whole.first->mean = whole.first->mean.clone();
  expect_noticed("another buffer");
  std::swap(whole.first->mean, whole.last->mean);
  expect_noticed("the same buffer at another place");
  whole.last->register_parameter("bias", first_weight());
  expect_noticed("one more parameter");
  whole.register_buffer("own", pair_of(2));
  expect_noticed("one more buffer");
  whole.first->register_module("inner", std::make_shared<torch::nn::Module>());
  expect_noticed("a part without tensors");
  whole.unregister_module("last");
  expect_noticed("a part less");
  whole.replace_module("first", std::make_shared<Part>(*whole.first));
  expect_noticed("another part with the same tensors");
  whole.script.setattr("weight", first_weight());
  expect_noticed("another parameter of a scripted part");
}

// A view without train() of its own keeps the mode that it was given.
TEST(ReplacedTensors, TheModeOfAViewStays) {
  const auto net = std::make_shared<CentredStruct>();
  const auto model = as_module(net);
  model->eval();
  net->weight = first_weight();
  EXPECT_TRUE(distinct_parameters(*model).at(0).is_same(net->weight));
  EXPECT_FALSE(model->is_training());
}

}  // namespace
}  // namespace lockstep::test
