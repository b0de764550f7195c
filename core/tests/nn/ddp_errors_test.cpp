// Wrong models, wrong use, and ranks that die.
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <fstream>

#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

std::string error_of_wrapping(Net net, const DistributedDataParallelOptions& options = {}) {
  return error_of([&] { DistributedDataParallel<Net>(net, options); });
}

TEST(DdpErrors, WithoutAWorld) {
  expect_in(error_of_wrapping(Net(torch::nn::Linear(2, 2))), {"init_process_group"});
}

TEST(DdpErrorsMulti, DifferentModelsAreNamedOnEveryRank) {
  run_processes(3, [](int rank) {
    const Rank group;
    const auto linear = [](int in, int out) { return Net(torch::nn::Linear(in, out)); };
    expect_in(
        error_of_wrapping(rank == 1 ? linear(4, 6) : linear(4, 5)),
        {"parameter '0.weight'", "[5, 4]", "on rank(s) 0, 2", "[6, 4]", "on rank(s) 1", fmt::format("rank {}", rank)});

    Net doubled = linear(4, 5);
    if (rank == 2) doubled->to(torch::kDouble);
    expect_in(error_of_wrapping(doubled), {"'0.weight'", "Float", "on rank(s) 0, 1", "Double", "on rank(s) 2"});

    Net longer = linear(4, 5);
    if (rank == 0) longer->push_back(torch::nn::Linear(5, 7));
    expect_in(error_of_wrapping(longer), {"parameter '1.weight'", "[7, 5]", "on rank(s) 0", "nothing more", "1, 2"});

    Net renamed;
    renamed->push_back(rank == 1 ? "body" : "head", torch::nn::Linear(4, 5));
    expect_in(error_of_wrapping(renamed), {"'body.weight'", "on rank(s) 1", "'head.weight'", "on rank(s) 0, 2"});

    Net frozen = linear(4, 5);
    if (rank == 1) frozen->parameters()[1].requires_grad_(false);
    expect_in(error_of_wrapping(frozen), {"'0.bias'", "frozen", "on rank(s) 1"});

    Net turned(torch::nn::Conv2d(4, 5, 3));
    if (rank == 0) {
      torch::Tensor weight = turned->parameters()[0];
      weight.set_data(weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    }
    expect_in(error_of_wrapping(turned), {"'0.weight'", "strides [36, 1, 12, 4]", "on rank(s) 0"});

    Net normed(torch::nn::Linear(4, 5));
    if (rank == 2) normed->push_back(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(5).affine(false)));
    expect_in(error_of_wrapping(normed), {"buffer '1.running_mean'", "on rank(s) 2", "nothing more", "0, 1"});

    Net activated = linear(4, 5);
    rank == 1 ? activated->push_back(torch::nn::Tanh()) : activated->push_back(torch::nn::ReLU());
    expect_in(error_of_wrapping(activated), {"needs the same model", "module '1': torch::nn::ReLUImpl on rank(s) 0, 2",
                                             "module '1': torch::nn::TanhImpl on rank(s) 1"});
    // Ignored by all: each rank's own.
    Net own = linear(4, 5);
    rank == 1 ? own->push_back(torch::nn::PReLU()) : own->push_back(torch::nn::Linear(5, 5));
    DistributedDataParallelOptions ignoring;
    for (const auto& item : own->named_parameters()) {
      if (item.key().starts_with("1.")) ignoring.ignored_parameters.emplace_back(item.key());
    }
    EXPECT_EQ(error_of_wrapping(own, ignoring), "no error");

    // The group still works.
    DistributedDataParallel<Net> ddp(linear(4, 5));
    ddp.forward(torch::ones({2, 4})).sum().backward();
    expect_equal_on_all_ranks({ddp.parameters()[0].grad()}, "gradient");
  });
}

// The others do not wait for a rank that alone has something wrong.
TEST(DdpErrorsMulti, WhatOneRankAloneGetsWrongIsAnErrorOfAll) {
  run_processes(3, [](int rank) {
    const Rank group;
    const auto net = [] { return Net(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5)); };
    const auto expect_refused_by_1 = [&](const std::string& text, const std::string& why) {
      expect_in(text, {why});
      if (rank != 1)
        expect_in(text, {fmt::format("rank {}: DistributedDataParallel needs", rank), "rank(s) 1 cannot take part"});
    };
    const auto with = [&](const DistributedDataParallelOptions& wrong) {
      return error_of_wrapping(net(), rank == 1 ? wrong : DistributedDataParallelOptions());
    };
    expect_refused_by_1(with({.bucket_cap_mb = 0}), "bucket_cap_mb must be positive, got 0");
    expect_refused_by_1(with({.device_ids = {torch::Device("cuda:0")}}),
                        "device_ids: the module is on cpu, got cuda:0");
    expect_refused_by_1(with({.ignored_parameters = {"0.wieght"}}), "no parameter and no buffer '0.wieght'");
    Net frozen = net();
    for (torch::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(rank != 1);
    expect_refused_by_1(error_of_wrapping(frozen), "no parameter that requires a gradient");
    expect_refused_by_1(error_of_wrapping(rank == 1 ? Net(nullptr) : net()), "expected a module, found a null pointer");
    Net computed = net();
    if (rank == 1) computed->ptr(0)->register_parameter("scale", torch::ones({2}, torch::requires_grad()) * 2);
    expect_refused_by_1(error_of_wrapping(computed), "parameter '0.scale' is the result of an operation (MulBackward");
    Net on_meta = net();
    if (rank == 1) on_meta->ptr(1)->register_parameter("scale", torch::ones({2}, torch::kMeta));
    expect_refused_by_1(error_of_wrapping(on_meta), "parameter '1.scale' is on the meta device");
    DistributedDataParallelOptions two_wrong;
    if (rank == 0) two_wrong.bucket_cap_mb = 0;
    if (rank == 2) two_wrong.ignored_parameters = {"9.bias"};
    const std::string text = error_of_wrapping(net(), two_wrong);
    if (rank == 1) expect_in(text, {"rank(s) 0 cannot", "got 0", "rank(s) 2 cannot", "'9.bias'"});

    // A layer that waits for the others in each forward pass.
    Net converted = net();
    if (rank == 1) convert_sync_batchnorm(*converted);
    expect_in(error_of_wrapping(converted), {"synchronised layer '1' on rank(s) 1", "nothing more on rank(s) 0, 2"});
    // One that waits for this rank alone.
    Net alone = net();
    const ProcessGroup own = new_group({rank});
    if (rank == 1) convert_sync_batchnorm(*alone, own);
    EXPECT_EQ(error_of_wrapping(alone), "no error");
  });
}

TEST(DdpErrorsMulti, ARankThatIsNoMemberOfTheGroupIsTold) {
  run_processes(3, [](int rank) {
    const Rank world;
    const std::string text = error_of_wrapping(Net(torch::nn::Linear(4, 5)), {.process_group = new_group({0, 1})});
    if (rank == 2) {
      expect_in(text, {"rank 2 of the world is no member of this group (ranks 0, 1)"});
    } else {
      EXPECT_EQ(text, "no error");
    }
  });
}

// As in PyTorch. Frozen from the start, or ignored; frozen for a while is no error.
class DdpNothingToTrainMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpNothingToTrainMulti, testing::Values(1, 2));

TEST_P(DdpNothingToTrainMulti, IsAnErrorOnEveryRank) {
  run_processes(GetParam(), [](int) {
    const Rank group;
    const std::string text = "no parameter that requires a gradient";
    Net net(torch::nn::Linear(4, 5));
    const auto freeze = [&](bool frozen) {
      for (torch::Tensor& parameter : net->parameters()) parameter.requires_grad_(!frozen);
    };
    freeze(true);
    expect_in(error_of_wrapping(net), {text, "without DistributedDataParallel"});
    freeze(false);
    expect_in(error_of_wrapping(net, {.ignored_parameters = {"0.weight", "0.bias"}}), {text});

    DistributedDataParallel<Net> ddp(net);
    const auto forward = [&] { return ddp->forward(torch::ones({2, 4})); };
    forward().sum().backward();
    // A discriminator in the generator's step: the gradient passes through.
    ddp.join([&] {
      net->zero_grad();
      for (int step = 0; step < 2; ++step) {
        freeze(true);
        const torch::Tensor x = torch::ones({2, 4}, torch::requires_grad());
        ddp->forward(x).sum().backward();
        ddp.register_comm_hook(nullptr);
        EXPECT_TRUE(torch::equal(x.grad()[1], net->parameters()[0].sum(0)));
        EXPECT_FALSE(net->parameters()[0].grad().defined());
        freeze(false);
      }
    });
    net->zero_grad();
    forward().sum().backward();
    EXPECT_TRUE(torch::equal(net->parameters()[1].grad(), torch::full({5}, 2.0))) << "the group and the wrapper work";
  });
}

struct ForkedImpl : torch::nn::Module {
  ForkedImpl() {
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x, bool go_left) { return (go_left ? left(x) : right(x)).sum(); }
  torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(Forked);

// A rank whose loss does not depend on the model, or that runs no backward pass, is a step behind the others from then
// on. Without the wrapper's own look at it, the mean would be of gradients of different steps.
TEST(DdpErrorsMulti, ARankThatDropsAForwardPassIsNamedInTheNextPass) {
  run_processes(3, [](int number) {
    const Rank rank;
    for (const bool method : {true, false}) {
      torch::nn::Linear net(4, 4);
      DistributedDataParallel<torch::nn::Linear> ddp(net);
      const auto forward = [&](int step) {
        const torch::Tensor x = random_input({2, 4}, step);
        return method ? ddp->forward(x) : ddp.forward(x);
      };
      for (int step = 0; step < 3; ++step) forward(step).sum().backward();
      // None of these is a pass that others would miss.
      if (number == 1) {
        EXPECT_TRUE(ddp->is_training());
        const torch::NoGradGuard no_grad;
        forward(3);
      }
      if (number == 2) {
        const auto guard = ddp.no_sync();
        forward(3).sum().backward();
        forward(3);
      }
      net->eval();
      if (number == 0) forward(3);
      net->train();
      for (int part = 0; part < 2; ++part) forward(3);  // alike on all ranks
      {
        std::vector<torch::Tensor> kept;  // of a loss over a different number of calls on each rank
        for (int part = 0; part <= number; ++part) kept.push_back(forward(3));
        torch::stack(kept).sum().backward();
      }
      // An empty batch: its loss is a constant.
      if (number == 1) forward(4);
      const std::string own = number == 1 ? "1 on this rank" : "0 on this rank";
      expect_in(error_of([&] { forward(5).sum().backward(); }), {"different steps", own});
      forward(6).sum().backward();  // all know, and may go on
    }
  });
}

// What looks like a dropped forward pass on one rank, and is none.
TEST(DdpErrorsMulti, NoForwardPassIsTakenForADroppedOne) {
  run_processes(3, [](int number) {
    const Rank rank;
    Net generator(torch::nn::Linear(4, 4));
    Net critic(torch::nn::Linear(4, 4));
    DistributedDataParallel<Net> g(generator);
    DistributedDataParallel<Net> d(critic);
    torch::Tensor kept;  // a picture for the log, with its graph
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor x = random_input({2, 4}, step);
      for (int part = 0; part < 2; ++part) {
        const torch::Tensor fake = g->forward(x);
        if (number == 0 && step == 1) kept = fake;
        d->forward(fake.detach()).sum().backward();
      }
      if (number == 1) {
        EXPECT_ANY_THROW(g.forward(torch::ones({2, 3})));  // and once more, with the right input
      }
      d->forward(g->forward(x)).sum().backward();
    }
  });
}

// Its forward makes no graph for an empty batch.
TEST(DdpErrorsMulti, AnEmptyBatchWithoutAGraphIsADroppedPass) {
  run_processes(2, [](int number) {
    const Rank rank;
    struct Model : torch::nn::Module {
      Model() { register_module("fc", fc); }
      torch::Tensor forward(const torch::Tensor& x) { return x.size(0) == 0 ? torch::zeros({1}) : fc(x); }
      torch::nn::Linear fc{4, 4};
    };
    DistributedDataParallel ddp(std::make_shared<Model>());
    for (int step = 0; step < 3; ++step) ddp(random_input({2, 4}, step)).sum().backward();
    if (number == 1) {
      EXPECT_FALSE(ddp(torch::ones({0, 4})).requires_grad());
    }
    expect_in(error_of([&] { ddp(random_input({2, 4}, 5)).sum().backward(); }), {"different steps"});
  });
}

TEST(DdpErrorsMulti, WrongOptionsAndBrokenPromises) {
  run_processes(2, [](int rank) {
    const Rank group;
    Net net(torch::nn::Linear(4, 5));
    expect_in(error_of_wrapping(net, {.bucket_cap_mb = 0}), {"bucket_cap_mb must be positive, got 0"});
    expect_in(error_of_wrapping(net, {.bucket_cap_mb = -1}), {"bucket_cap_mb must be positive, got -1"});
    expect_in(error_of_wrapping(net, {.device_ids = {torch::Device("cuda:0")}}),
              {"device_ids", "the module is on cpu, got cuda:0", "module->to(device)"});
    expect_in(error_of_wrapping(net, {.device_ids = {torch::kCPU, torch::kCPU}}), {"at most one device", "got 2"});
    expect_in(error_of_wrapping(net, {.output_device = torch::Device("cuda:0")}), {"output_device", "cpu", "cuda:0"});
    EXPECT_EQ(error_of_wrapping(net, {.device_ids = {torch::kCPU}, .output_device = torch::kCPU}), "no error");

    Net frozen(torch::nn::Linear(4, 5));
    for (torch::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    expect_in(error_of_wrapping(frozen), {"no parameter that requires a gradient"});
    expect_in(error_of_wrapping(Net()), {"no parameter that requires a gradient"});

    DistributedDataParallel<Forked> promised(Forked(), {.static_graph = true});
    const auto step = [&](bool left) { promised->forward(torch::ones({2, 4}), left).backward(); };
    step(true);
    step(true);
    expect_in(error_of([&] { step(false); }),
              {fmt::format("rank {}", rank), "static_graph", "'left.weight' (used in the first pass, not now)",
               "'right.bias' (used now, not in the first pass)"});
    // Only one rank breaks the promise: it gets an error, and the other does not wait for it.
    const std::string error = error_of([&] { step(rank == 0); });
    if (rank == 0) {
      EXPECT_EQ(error, "no error");
    } else {
      expect_in(error, {"rank 1", "static_graph"});
    }
    step(true);
  });
}

// Trains until an error comes, then writes the error and the weights to a file. The victim dies in a backward pass.
void train_until_error(bool die, const std::filesystem::path& report) {
  const Rank group;
  torch::manual_seed(1);
  Net net(torch::nn::Linear(100, 200), torch::nn::Linear(200, 200), torch::nn::Linear(200, 10));
  DistributedDataParallel<Net> ddp(net, {.bucket_cap_mb = 0.01});
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  std::string text = "no error";
  for (int step = 0; step < 100000; ++step) {
    try {
      optimizer.zero_grad();
      ddp->is_training();
      const torch::Tensor x = net->ptr<torch::nn::LinearImpl>(0)->forward(random_input({4, 100}, step));
      if (die && step == 5) x.register_hook([](const torch::Tensor&) { raise(SIGKILL); });
      const torch::Tensor y = net->ptr<torch::nn::LinearImpl>(1)->forward(x);
      const torch::Tensor loss = net->ptr<torch::nn::LinearImpl>(2)->forward(y).square().mean();
      loss.backward();
      optimizer.step();
    } catch (const std::exception& error) {
      text = fmt::format("step {}: {}: {}", step, to_string(error_code(error)), error.what());
      break;
    }
  }
  torch::save(net->parameters(), report.native() + ".pt");
  std::ofstream(report) << text;
}

TEST(DdpFault, AKilledRankIsNamedByBackwardAndParametersCanBeSaved) {
  std::vector<std::vector<torch::Tensor>> saved;
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [](int rank, const std::filesystem::path& report) { train_until_error(/*die=*/rank == 1, report); },
      [&](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        expect_in(text, {"step 5", "rank 1", std::string(to_string(ErrorCode::kPeerFailed))});
        torch::load(saved.emplace_back(), report.native() + ".pt");
      });
  ASSERT_EQ(saved.size(), 2U);
  ASSERT_EQ(saved[0].size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(torch::equal(saved[0][i], saved[1][i])) << "weights of step 5 differ";
}

}  // namespace
}  // namespace lockstep::test
