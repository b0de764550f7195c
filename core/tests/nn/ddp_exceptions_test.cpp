// Models that are destroyed while their gradients are still being reduced, because a backward pass ended with an
// exception.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/nn/power_sgd.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kWidth = 520;  // a layer fills the first bucket of 1 MiB
const DistributedDataParallelOptions kOneLayerABucket{.bucket_cap_mb = 1};

struct ChainImpl : torch::nn::Cloneable<ChainImpl> {
  ChainImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    middle = register_module("middle", torch::nn::Linear(kWidth, kWidth));
    last = register_module("last", torch::nn::Linear(kWidth, kWidth));
  }
  using Hook = std::function<void()>;
  // `before` and `between` are called in the backward pass: before the gradients of `last`, before those of `first`.
  torch::Tensor forward(const torch::Tensor& x, const Hook& before = nullptr, const Hook& between = nullptr) {
    const auto watch = [](const torch::Tensor& tensor, const Hook& hook) {
      if (hook) tensor.register_hook([hook](const torch::Tensor&) { hook(); });
    };
    const torch::Tensor y = first(x);
    watch(y, between);
    const torch::Tensor z = last(torch::relu(middle(torch::relu(y))));
    watch(z, before);
    return z.square().mean();
  }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
};
TORCH_MODULE(Chain);

void fail() {
  throw std::runtime_error("the user's own");
}

torch::Tensor input(int step) {
  return random_input({4, kWidth}, step);
}

DistributedDataParallelOptions options_in(const ProcessGroup& group) {
  DistributedDataParallelOptions options = kOneLayerABucket;
  options.process_group = group;
  return options;
}

// In a first pass, and uses them in a second.
void build_buckets(Chain& model, DistributedDataParallel<Chain>& ddp) {
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    ddp->forward(input(step)).backward();
  }
}

// The third pass ends with an exception, after the buckets of `last` and `middle` were started.
void fail_in_third_pass(Chain& model, const ProcessGroup& group = nullptr) {
  DistributedDataParallel<Chain> ddp(model, options_in(group));
  build_buckets(model, ddp);
  model->zero_grad();
  const auto fail_later = [&] {
    EXPECT_TRUE(model->last->weight.grad().defined());
    fail();
  };
  EXPECT_THROW(ddp->forward(input(2), nullptr, fail_later).backward(), std::runtime_error);
}

void expect_no_gradients_under_way(const Chain& model) {
  EXPECT_FALSE(model->last->weight.grad().defined());
  EXPECT_FALSE(model->middle->weight.grad().defined());
}

void expect_training_works(Chain& model, const ProcessGroup& group = nullptr) {
  Twins<Chain> twins([&] { return model; }, options_in(group));
  // Twins calls this twice to make its models: the twin needs parameters of its own.
  twins.twin = Chain(std::dynamic_pointer_cast<ChainImpl>(model->clone()));
  for (int step = 10; step < 13; ++step) {
    twins.step([x = input(step)](Chain& net) { return net->forward(x); }, fmt::format("step {}", step));
    twins.descend();
  }
}

class DdpExceptionsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpExceptionsMulti, testing::Values(1, 2, 3));

TEST_P(DdpExceptionsMulti, OnAllRanksThenANewModelInTheSameGroup) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Chain model;
    for (int round = 0; round < 3; ++round) {
      fail_in_third_pass(model);
      if (get_world_size() > 1) expect_no_gradients_under_way(model);
      expect_training_works(model);
    }
  });
}

// The next pass finishes what the first hook has started, though the program keeps nothing of that hook.
TEST_P(DdpExceptionsMulti, OnAllRanksThenAnotherHook) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Chain model;
    DistributedDataParallel<Chain> ddp(model, kOneLayerABucket);
    ddp.register_comm_hook(make_power_sgd_hook({.start_power_sgd_iter = 0}));
    build_buckets(model, ddp);
    EXPECT_THROW(ddp->forward(input(2), nullptr, &fail).backward(), std::runtime_error);
    ddp.register_comm_hook(nullptr);
    model->zero_grad();
    ddp->forward(input(3)).backward();
    expect_equal_on_all_ranks({model->first->weight.grad(), model->last->weight.grad()}, "gradient");
  });
}

// The other rank is late: it would write into what the program has zeroed.
TEST(DdpExceptionsFault, OnAllRanksLeavesNoGradientsUnderWay) {
  run_processes(2, [](int number) {
    const Rank rank;
    Chain model;
    DistributedDataParallel<Chain> ddp(model, kOneLayerABucket);
    build_buckets(model, ddp);
    model->zero_grad();
    if (number == 1) barrier();
    EXPECT_THROW(ddp->forward(input(2), nullptr, &fail).backward(), std::runtime_error);
    if (number == 0) {
      expect_no_gradients_under_way(model);
      barrier();
    }
    model->zero_grad();
    ddp->forward(input(3)).backward();
    expect_equal_on_all_ranks({model->first->weight.grad(), model->last->weight.grad()}, "gradient");
  });
}

// Rank 1 has sent nothing of the pass that the exception has ended, so its next pass meets the rest of rank 0's.
TEST(DdpExceptionsFault, BeforeTheFirstGradientOfOneRankTheGroupIsLostOnAll) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Chain model;
    const ProcessGroup group = new_group({0, 1}, {.name = "lost"});
    {
      DistributedDataParallel<Chain> ddp(model, options_in(group));
      build_buckets(model, ddp);
      const ChainImpl::Hook before = number == 1 ? &fail : nullptr;
      EXPECT_THROW(ddp->forward(input(2), before, &fail).backward(), std::runtime_error);
      std::string lost;
      for (int step = 3; step < 6 && lost.empty(); ++step) {
        model->zero_grad();
        try {
          ddp->forward(input(step)).backward();
        } catch (const std::exception& error) {
          lost = error.what();
        }
      }
      EXPECT_NE(lost.find("an exception has ended this backward pass on another rank"), std::string::npos) << lost;
    }
    destroy_process_group(group);
    expect_training_works(model, new_group({0, 1}, {.name = "second"}));
  });
}

// Takes memory of the group's arena, as much as the destroyed buckets had.
std::vector<torch::Tensor> fill_arena() {
  const auto backend = default_group()->getBackend(torch::kCPU);
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(backend->allocateTensor(kWidth * kWidth + kWidth, torch::kFloat));
    tensors.back().fill_(i + 1);
  }
  return tensors;
}

void expect_untouched(const std::vector<torch::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(tensors[i].eq(static_cast<double>(i) + 1).all().item<bool>());
}

TEST(DdpExceptionsFault, OnOneRankTheOthersWriteIntoNothingButItsOldBuckets) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Chain model;
    const ProcessGroup group = new_group({0, 1}, {.name = "lost"});
    if (number == 0) {
      fail_in_third_pass(model, group);
      expect_no_gradients_under_way(model);
      const std::vector<torch::Tensor> others = fill_arena();
      barrier();  // now rank 1 starts its third pass
      barrier();  // now it has taken part in all that this rank had started
      expect_untouched(others);
      destroy_process_group(group);
      barrier();
      expect_untouched(others);
    } else {
      DistributedDataParallel<Chain> ddp(model, options_in(group));
      build_buckets(model, ddp);
      model->zero_grad();
      try {
        ddp->forward(
               input(2), [] { barrier(); }, [] { barrier(); })
            .backward();
        ADD_FAILURE() << "no exception";
      } catch (const std::exception& error) {
        EXPECT_EQ(error_code(error), ErrorCode::kPeerFailed) << error.what();
        EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
      }
      barrier();
    }
    destroy_process_group(group);
    expect_training_works(model, new_group({0, 1}, {.name = "second"}));
  });
}

}  // namespace
}  // namespace lockstep::test
