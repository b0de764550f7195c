// Options of the wrapper: ignored parameters, init_sync, join's, and options that differ between ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "lockstep/base/log.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

struct OwnImpl : torch::nn::Module {
  explicit OwnImpl(int own_size = 3) {
    shared = register_module("shared", torch::nn::Linear(4, 4));
    own = register_parameter("own", torch::ones({own_size, 4}));
    also_own = register_parameter("also_own", torch::ones({4}));
    same_as_own = register_parameter("same_as_own", also_own);
    count = register_buffer("count", torch::zeros({own_size}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return (shared(x) * also_own).matmul(own.t()).square().sum() + count.sum();
  }
  torch::nn::Linear shared{nullptr};
  torch::Tensor own, also_own, same_as_own, count;
};
TORCH_MODULE(Own);

TEST(DdpOptionsMulti, IgnoredParametersAreEachRanksOwn) {
  run_processes(3, [](int number) {
    const Rank rank;
    torch::manual_seed(number);
    Own net(2 + number);  // other shapes on every rank
    {
      const torch::NoGradGuard no_grad;
      net->also_own.fill_(number + 1);
      net->count.fill_(number);
    }
    DistributedDataParallel<Own> ddp(net, {.ignored_parameters = {"own", net->same_as_own, "count"}});
    EXPECT_EQ(ddp.parameters().size(), 4U) << "the optimizer gets them all";
    EXPECT_EQ(net->also_own[0].item<int>(), number + 1);
    EXPECT_EQ(net->count[0].item<int>(), number);
    expect_equal_on_all_ranks({net->shared->weight}, "weight");
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const torch::Tensor x = random_input({2, 4}, step);
      const torch::Tensor expected = torch::autograd::grad({net->forward(x)}, {net->own, net->also_own})[1].clone();
      ddp->forward(x).backward();
      EXPECT_TRUE(torch::equal(net->also_own.grad(), expected)) << "step " << step;
      EXPECT_EQ(net->own.grad().size(0), 2 + number);
      expect_equal_on_all_ranks({net->shared->weight.grad()}, "gradient");
      net->own.set_data(torch::ones({2 + number, 4}));  // nobody else's business
    }
    EXPECT_EQ(net->count[0].item<int>(), number);
  });
}

TEST(DdpOptionsMulti, WrongOptionsAreNamed) {
  run_processes(3, [](int number) {
    const Rank rank;
    const auto error = [](const DistributedDataParallelOptions& options) {
      return error_of([&] { DistributedDataParallel<Own>(Own(), options); });
    };
    expect_in(error({.ignored_parameters = {"shared.wieght"}}),
              {"ignored_parameters", "no parameter", "'shared.wieght'"});
    expect_in(error({.ignored_parameters = {"own", torch::ones(2)}}), {"ignored_parameters[1]", "no parameter"});
    expect_in(error({.bucket_cap_mb = number == 2 ? 10.0 : 25.0}),
              {"option bucket_cap_mb: 25 on rank(s) 0, 1", "option bucket_cap_mb: 10 on rank(s) 2"});
    expect_in(error({.static_graph = number == 0}),
              {"option static_graph: true on rank(s) 0", "false on rank(s) 1, 2"});
    expect_in(error({.broadcast_buffers = number != 1}), {"option broadcast_buffers: false on rank(s) 1"});
    DistributedDataParallelOptions ignoring;
    if (number == 1) ignoring.ignored_parameters = {"shared.weight"};
    expect_in(error(ignoring), {"parameter 'shared.weight': Float [4, 4] on rank(s) 0, 2", "on rank(s) 1"});
    EXPECT_EQ(error({.gradient_as_bucket_view = number != 1}), "no error") << "concerns each rank alone";
  });
}

TEST(DdpOptionsMulti, LayersThatOnlySomeRanksShareAreNamed) {
  run_processes(2, [](int number) {
    const Rank rank;
    const torch::nn::Linear first(3, 3);
    const Net net(first, number == 1 ? first : torch::nn::Linear(3, 3));
    expect_in(error_of([&] { DistributedDataParallel<Net> ddp(net); }),
              {"parameter '1.weight': Float [3, 3] on rank(s) 0", "[3, 3], shared with '0.weight' on rank(s) 1"});
  });
}

TEST(DdpOptionsMulti, InitSyncOffKeepsEachRanksValues) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(number);
    Net net(torch::nn::Linear(3, 3));
    const torch::Tensor before = net->parameters()[0].detach().clone();
    DistributedDataParallel<Net> ddp(net, {.init_sync = false});
    EXPECT_TRUE(torch::equal(net->parameters()[0], before));
    ddp->forward(random_input({2, 3}, 0)).sum().backward();
    expect_equal_on_all_ranks({net->parameters()[0].grad()}, "gradient");
  });
}

// At the start, in a pass, when the model has changed, and at the end of a join.
TEST(DdpOptionsMulti, BroadcastBuffersOffKeepsEachRanksBuffers) {
  run_processes(2, [](int number) {
    const Rank rank;
    Own net;
    const torch::Tensor own = torch::full({3}, number + 1.0);
    net->count.copy_(own);
    DistributedDataParallel<Own> ddp(net, {.broadcast_buffers = false});
    const auto expect_own = [&](const char* when) { EXPECT_TRUE(torch::equal(net->count, own)) << when; };
    const auto pass = [&] { ddp->forward(random_input({2, 4}, 0)).backward(); };
    expect_own("at the start");
    pass();
    expect_own("after a pass");
    net->own.requires_grad_(false);
    pass();
    expect_own("after the model has changed");
    ddp.join([&] {
      for (int step = 0; step < 1 + number; ++step) pass();
    });
    expect_own("after a join");
    expect_equal_on_all_ranks(net->parameters(), "parameter");
  });
}

// One warning on one rank. Gradients are the mean, without a graph.
TEST(DdpOptionsMulti, CreateGraphIsWarnedOf) {
  run_processes(2, [](int number) {
    const Rank rank;
    for (const bool views : {true, false}) {
      torch::manual_seed(1);
      Net net(torch::nn::Linear(3, 3));
      DistributedDataParallel<Net> ddp(net, {.gradient_as_bucket_view = views});
      std::string logged;
      log::set_output([&](std::string_view line) { logged += line; });
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const torch::Tensor loss = ddp->forward(random_input({2, 3}, step)).square().sum();
        loss.backward({}, /*retain_graph=*/std::nullopt, /*create_graph=*/step > 0);
        EXPECT_FALSE(net->parameters()[0].grad().requires_grad());
        expect_equal_on_all_ranks({net->parameters()[0].grad()}, "gradient");
      }
      log::set_output({});
      const std::size_t first = logged.find("create_graph");
      EXPECT_EQ(first != std::string::npos, number == 0) << logged;
      if (number == 0) {
        EXPECT_EQ(logged.find("create_graph", first + 1), std::string::npos) << "once";
      }
    }
  });
}

struct CountingHook final : CommHook {
  std::function<void()> run(GradBucket& /*bucket*/) override {
    ++buckets;
    return nullptr;
  }
  int buckets = 0;
};

// All gradients but those of the first bucket, which is at most 1 MiB.
TEST(DdpOptionsMulti, AnInfiniteBucketHoldsAllThatFollow) {
  run_processes(2, [](int) {
    const Rank rank;
    Net net;
    for (int layer = 0; layer < 4; ++layer) net->push_back(torch::nn::Linear(520, 520));
    DistributedDataParallel<Net> ddp(net, {.bucket_cap_mb = std::numeric_limits<double>::infinity()});
    const auto hook = std::make_shared<CountingHook>();
    ddp.register_comm_hook(hook);
    ddp->forward(random_input({2, 520}, 0)).sum().backward();
    EXPECT_EQ(hook->buckets, 2);
  });
}

class DdpJoinMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpJoinMulti, testing::Values(1, 2, 3));

// Ranks with 2, 3, 4 inputs.
TEST_P(DdpJoinMulti, ThrowOnEarlyTermination) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    Net net(torch::nn::Linear(3, 3));
    DistributedDataParallel<Net> ddp(net);
    int steps = 0;
    const auto loop = [&](int inputs) {
      return [&, inputs] {
        for (int step = 0; step < inputs; ++step) {
          const torch::Tensor y = ddp.forward(random_input({2, 3}, step));
          const torch::Tensor in_forward = torch::ones({1});
          all_reduce(in_forward);  // as a layer of the model would
          EXPECT_EQ(in_forward.item<int>(), world);
          y.sum().backward();
          ++steps;
        }
      };
    };
    const JoinOptions options{.throw_on_early_termination = true};
    ddp.join(loop(3), options);  // equally many
    EXPECT_EQ(steps, 3);
    steps = 0;
    if (world == 1) return ddp.join(loop(2), options);
    try {
      ddp.join(loop(2 + number), options);
      ADD_FAILURE() << "no error";
    } catch (const UnevenInputsError& error) {
      expect_in(error.what_without_backtrace(),
                {"rank(s) 0 had no more inputs", world == 2 ? "rank(s) 1 had" : "rank(s) 1, 2 had"});
    }
    EXPECT_EQ(steps, 2);
    steps = 0;
    ddp.join(loop(4), {.enable = false});
    EXPECT_EQ(steps, 4);
  });
}

// Layers and helpers that communicate: no rank finishes before the others. Ranks with 2 and 3 inputs.
TEST(DdpOptionsMulti, ThrowOnEarlyTerminationServesWhatCommunicates) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Net net(torch::nn::Linear(3, 3), SyncBatchNorm(3));
    DistributedDataParallel<Net> ddp(net);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    GradScaler scaler({.init_scale = 8});
    int steps = 0;
    const auto loop = [&] {
      for (int step = 0; step < 2 + number; ++step) {
        optimizer.zero_grad();
        scaler.scale(ddp->forward(random_input({4, 3}, step)).pow(4).mean()).backward();
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
        ++steps;
      }
    };
    const JoinOptions options{.throw_on_early_termination = true};
    EXPECT_THROW(ddp.join(loop, options), UnevenInputsError);
    EXPECT_EQ(steps, 2);
    expect_equal_on_all_ranks(net->parameters(), "parameter");
    expect_equal_on_all_ranks(net->buffers(), "buffer");
  });
}

// Calls through `ddp->` that are no pass: of all ranks around the steps, and of one rank before or after each. Ranks
// with equally many inputs, with 2 and 3, with 0 and 1.
TEST(DdpOptionsMulti, ThrowOnEarlyTerminationCountsPassesAlone) {
  run_processes(2, [](int number) {
    const Rank rank;
    for (const bool synchronised : {false, true}) {
      torch::manual_seed(1);
      Net net = synchronised ? Net(torch::nn::Linear(3, 3), SyncBatchNorm(3)) : Net(torch::nn::Linear(3, 3));
      DistributedDataParallel<Net> ddp(net);
      int steps = 0;
      const auto train = [&](int inputs) {
        steps = 0;
        const auto loop = [&] {
          ddp->train();
          for (int step = 0; step < inputs; ++step) {
            if (number == 0) ddp->train();
            ddp->forward(random_input({4, 3}, step)).pow(4).mean().backward();
            if (number == 1) ddp->is_training();
            ++steps;
          }
          ddp->eval();
        };
        ddp.join(loop, {.throw_on_early_termination = true});
      };
      train(3);
      EXPECT_EQ(steps, 3);
      for (const int fewest : {2, 0}) {
        EXPECT_THROW(train(fewest + number), UnevenInputsError) << "synchronised " << synchronised;
        EXPECT_EQ(steps, fewest) << "synchronised " << synchronised;
      }
      expect_equal_on_all_ranks(net->buffers(), "buffer");
      net->train();
      net->zero_grad();
      ddp->forward(random_input({4, 3}, 9)).pow(4).mean().backward();
      expect_equal_on_all_ranks({net->parameters()[0].grad()}, "gradient");
    }
  });
}

// The gradient of a bias, which is the number of samples, in each step of a loop with so many inputs on this rank. The
// mean is that of the ranks that still have inputs.
std::vector<double> gradients_in_join(DistributedDataParallel<Net>& ddp, int inputs) {
  std::vector<double> gradients;
  const auto loop = [&] {
    for (int step = 0; step < inputs; ++step) {
      ddp.module()->zero_grad();
      ddp->forward(random_input({6, 3}, step)).sum().backward();
      gradients.push_back(ddp.module()->parameters()[1].grad()[0].item<double>());
    }
  };
  ddp.join(loop, {.divide_by_initial_world_size = false});
  return gradients;
}

TEST_P(DdpJoinMulti, DivideByTheRanksThatStillHaveInputs) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Net net(torch::nn::Linear(3, 3));
    DistributedDataParallel<Net> ddp(net);
    EXPECT_EQ(gradients_in_join(ddp, number + 1), std::vector<double>(number + 1, 6.0));
    net->zero_grad();
    ddp->forward(random_input({6, 3}, 0)).sum().backward();
    EXPECT_EQ(net->parameters()[1].grad()[0].item<double>(), 6.0) << "afterwards all count again";
  });
}

// Ranks with 1, 2, 3 inputs: in step s all ranks but the first s have some.
TEST_P(DdpJoinMulti, DividesSparseGradients) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    for (const bool initial : {true, false}) {
      torch::manual_seed(1);
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
      DistributedDataParallel<torch::nn::Embedding> ddp(table);
      const auto loop = [&] {
        for (int step = 0; step <= number; ++step) {
          table->zero_grad();
          ddp->forward(torch::full({3}, 2, torch::kLong)).sum().backward();
          EXPECT_TRUE(table->weight.grad().is_sparse());
          torch::Tensor expected = torch::zeros({5, 2});
          expected[2] = initial ? 3.0 * (world - step) / world : 3.0;
          EXPECT_TRUE(torch::allclose(table->weight.grad().to_dense(), expected))
              << "step " << step << ", by the initial number " << initial;
        }
      };
      ddp.join(loop, {.divide_by_initial_world_size = initial});
    }
  });
}

// Ranks with 1, 2, 3 inputs, whose hooks leave each rank its own gradients.
TEST_P(DdpJoinMulti, DoesNotScaleWhatIsNoMean) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const auto& hook : {make_noop_hook(), make_compress_wrapper(torch::kBFloat16, make_noop_hook())}) {
      torch::manual_seed(1);
      Net net(torch::nn::Linear(3, 3));
      DistributedDataParallel<Net> ddp(net);
      ddp.register_comm_hook(hook);
      EXPECT_EQ(gradients_in_join(ddp, number + 1), std::vector<double>(number + 1, 6.0)) << hook->description();
    }
  });
}

// Two ranks train to the end. Also where all ranks have equally many inputs, and nobody throws.
TEST_P(DdpJoinMulti, SendsTheBuffersOfTheHighestRank) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    for (const bool throws : {false, true}) {
      Own net;
      DistributedDataParallel<Own> ddp(net);
      const int inputs = throws || number + 2 >= world ? 3 : 1;
      const auto loop = [&] {
        for (int step = 0; step < inputs; ++step) {
          net->count.fill_(10 * step + number);  // as a layer does in its forward pass
          ddp.forward(random_input({2, 4}, step)).backward();
          EXPECT_EQ(net->count[0].item<int>(), 10 * step + world - 1) << "step " << step << ", throws " << throws;
        }
      };
      ddp.join(loop, {.throw_on_early_termination = throws});
      EXPECT_EQ(net->count[0].item<int>(), 20 + world - 1) << "throws " << throws;
      net->count.fill_(number);
      ddp.forward(random_input({2, 4}, 0)).backward();
      EXPECT_EQ(net->count[0].item<int>(), 0) << "afterwards rank 0's";
    }
  });
}

// With and without inputs; afterwards the wrapper works.
TEST(DdpOptionsMulti, JoinNamesOptionsThatDiffer) {
  run_processes(3, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Net net(torch::nn::Linear(3, 3));
    DistributedDataParallel<Net> ddp(net);
    for (const int inputs : {0, 1}) {
      const auto error = [&](const JoinOptions& options) {
        return error_of([&] {
          ddp.join(
              [&] {
                for (int step = 0; step < inputs; ++step) ddp->forward(random_input({6, 3}, step)).sum().backward();
              },
              options);
        });
      };
      expect_in(error({.divide_by_initial_world_size = number != 1}),
                {"join needs the same options", "option divide_by_initial_world_size: true on rank(s) 0, 2",
                 "option divide_by_initial_world_size: false on rank(s) 1"});
      expect_in(error({.throw_on_early_termination = number == 2}),
                {"option throw_on_early_termination: true on rank(s) 2", "false on rank(s) 0, 1"});
    }
    net->zero_grad();
    EXPECT_EQ(gradients_in_join(ddp, number + 1), std::vector<double>(number + 1, 6.0));
  });
}

TEST(DdpOptionsMulti, JoinInsideAnotherWrappersJoinIsRefused) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    DistributedDataParallel<Net> one(Net(torch::nn::Linear(3, 3)));
    DistributedDataParallel<Net> other(Net(torch::nn::Linear(3, 3)));
    for (const bool throws : {false, true}) {
      const JoinOptions options{.throw_on_early_termination = throws};
      expect_in(error_of([&] { one.join([&] { other.join([] {}, options); }, options); }),
                {"join() of a DistributedDataParallel inside join() of another one", "parts of one module"});
    }
    one.join([&] { other.join([] {}, {.enable = false}); });
    EXPECT_EQ(gradients_in_join(one, number + 1), std::vector<double>(number + 1, 6.0));
    EXPECT_EQ(gradients_in_join(other, number + 1), std::vector<double>(number + 1, 6.0));
  });
}

// Rank 0 has no inputs. The error of a pass ends its join too.
TEST(DdpOptionsMulti, JoinEndsWithAnErrorOnEveryRank) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Net net(torch::nn::Linear(3, 3));
    DistributedDataParallel<Net> ddp(net);
    if (number == 1) ddp.register_comm_hook(make_noop_hook());
    expect_in(error_of([&] { gradients_in_join(ddp, number); }), {"the same communication hook"});
    ddp.register_comm_hook(nullptr);
    net->zero_grad();
    ddp->forward(random_input({6, 3}, 0)).sum().backward();
    EXPECT_EQ(net->parameters()[1].grad()[0].item<double>(), 6.0) << "a pass outside of a join";
    EXPECT_EQ(gradients_in_join(ddp, number + 1), std::vector<double>(number + 1, 6.0));
  });
}

// Rank 0 has no inputs in the first join.
TEST(DdpOptionsMulti, StaticGraphCountsARanksOwnPasses) {
  run_processes(2, [](int number) {
    const Rank rank;
    Net net(torch::nn::Linear(3, 3));
    DistributedDataParallel<Net> ddp(net, {.static_graph = true});
    for (const int inputs : {2 * number, 2, 2}) {
      ddp.join([&] {
        for (int step = 0; step < inputs; ++step) {
          net->zero_grad();
          ddp->forward(random_input({2, 3}, step)).sum().backward();
        }
      });
    }
  });
}

// Registers a buffer in its first pass.
struct LateImpl : torch::nn::Module {
  LateImpl() { line = register_module("line", torch::nn::Linear(3, 3)); }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!mask.defined()) mask = register_buffer("mask", torch::ones({3}));
    return line(x) * mask;
  }
  torch::nn::Linear line{nullptr};
  torch::Tensor mask;
};
TORCH_MODULE(Late);

TEST(DdpOptionsMulti, JoinTakesChangesOfTheModuleAtItsStartAlone) {
  run_processes(2, [](int number) {
    const Rank rank;
    Late net;
    DistributedDataParallel<Late> ddp(net);
    const auto join = [&](int inputs) {
      ddp.join([&] {
        for (int step = 0; step < inputs; ++step) ddp->forward(random_input({2, 3}, step)).sum().backward();
      });
    };
    expect_in(error_of([&] { join(2); }), {"join: the module has got other parameters or buffers", "before join"});
    join(2 * number);  // the buffer is known now; rank 0 has no inputs
    net->line->bias.requires_grad_(false);
    join(2 * number);
    expect_equal_on_all_ranks(net->parameters(), "parameter");
  });
}

TEST(DdpOptionsMulti, JoinRefusesLayersThatCommunicateInForward) {
  run_processes(2, [](int) {
    const Rank rank;
    for (const bool converted : {false, true}) {
      Net net = converted ? Net(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3))
                          : Net(torch::nn::Linear(3, 3), SyncBatchNorm(3));
      if (converted) convert_sync_batchnorm(*net);
      DistributedDataParallel<Net> ddp(net);
      expect_in(error_of([&] { ddp.join([] {}); }), {"join: layer '1'", "BatchNorm", "throw_on_early_termination"});
      ddp.join([] {}, {.throw_on_early_termination = true});
      net->eval();
      ddp.join([] {});
    }
    // A module that no shared_ptr owns.
    DistributedDataParallel<torch::nn::LinearImpl> by_value(torch::nn::LinearImpl(3, 3));
    by_value.join([] {});
  });
}

}  // namespace
}  // namespace lockstep::test
