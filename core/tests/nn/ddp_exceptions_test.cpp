// Backward passes that end with an exception: what later passes compute, and models that are destroyed while their
// gradients are still being reduced.
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

// Where an exception ends a pass, and what the program then does under a guard of no_sync.
enum class Place { kGradientHook, kFunction };
enum class MicroBatch { kModule, kWrapper, kWithoutInput };

struct Throwing : torch::autograd::Function<Throwing> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    fail();
    return {};
  }
};

std::vector<torch::Tensor> gradients_of(Chain model, const torch::Tensor& x) {
  return torch::autograd::grad({model->forward(x)}, model->parameters());
}

// Compares with what LibTorch computes without the wrapper. A shared bucket has gradients before and after the
// exception; with a bucket for each layer some have been sent.
struct AfterException {
  Place place;
  MicroBatch micro_batch;
  bool first_pass;
  DistributedDataParallelOptions options;

  void run() const {
    torch::manual_seed(1);
    Chain model;
    model->to(torch::kDouble);
    DistributedDataParallel<Chain> ddp(model, options);
    if (!first_pass) {
      for (int step = 0; step < 2; ++step) ddp->forward(of(get_rank(), step)).backward();
    }
    throw_in_pass(model, ddp);
    for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    const torch::Tensor part = of(get_rank(), 3);
    const bool by_module = micro_batch == MicroBatch::kModule;
    {
      const auto guard = ddp.no_sync();
      if (micro_batch == MicroBatch::kWithoutInput && get_rank() % 2 == 1) {
        ddp.pass_without_input();
      } else {
        (by_module ? model->forward(part) : ddp->forward(part)).backward();
        compare(model, gradients_of(model, part), "under the guard");
      }
    }
    std::vector<torch::Tensor> mean;
    for (int rank = 0; rank < get_world_size(); ++rank) {
      const bool none = micro_batch == MicroBatch::kWithoutInput && rank % 2 == 1;
      for (const int step : none ? std::vector<int>{4} : std::vector<int>{3, 4}) {
        const std::vector<torch::Tensor> own = gradients_of(model, of(rank, step));
        mean.resize(own.size());
        for (std::size_t i = 0; i < own.size(); ++i) {
          const torch::Tensor share = own[i] / get_world_size();
          mean[i] = mean[i].defined() ? mean[i] + share : share;
        }
      }
    }
    (by_module ? model->forward(of(get_rank(), 4)) : ddp->forward(of(get_rank(), 4))).backward();
    compare(model, mean, "after the guard");
  }

  static torch::Tensor of(int rank, int step) { return random_input({4, kWidth}, step, rank).to(torch::kDouble); }

  void throw_in_pass(Chain& model, DistributedDataParallel<Chain>& ddp) const {
    torch::Tensor x = of(get_rank(), 2);
    torch::Tensor weight = model->middle->weight;
    unsigned hook = 0;
    if (place == Place::kGradientHook) {
      hook = weight.register_hook([](const torch::Tensor& gradient) {
        fail();
        return gradient;
      });
    } else {
      x = Throwing::apply(x.requires_grad_());
    }
    EXPECT_THROW((ddp->forward(x) * 1000).backward(), std::runtime_error);
    if (place == Place::kGradientHook) weight.remove_hook(hook);
  }

  void compare(Chain model, const std::vector<torch::Tensor>& expected, const char* when) const {
    const auto parameters = model->named_parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const torch::Tensor& found = parameters[i].value().grad();
      ASSERT_TRUE(found.defined()) << when;
      EXPECT_LT((found - expected[i]).abs().max().item<double>(), 1e-9)
          << when << ", " << parameters[i].key() << ", place " << static_cast<int>(place) << ", micro-batch "
          << static_cast<int>(micro_batch) << ", first pass " << first_pass << ", bucket " << options.bucket_cap_mb
          << ", views " << options.gradient_as_bucket_view;
    }
  }
};

// 48 programs of a few passes: some seconds of a core in each world.
TEST_P(DdpExceptionsMulti, OnAllRanksNothingOfThePassCountsInALaterOne) {
  run_processes(GetParam(), [](int) {
    torch::set_num_threads(1);
    const ProcessGroupGuard group("", {.timeout = std::chrono::seconds(20)});
    for (int variant = 0; variant < 48; ++variant) {
      AfterException{.place = variant % 2 == 0 ? Place::kGradientHook : Place::kFunction,
                     .micro_batch = static_cast<MicroBatch>(variant / 2 % 3),
                     .first_pass = variant / 6 % 2 == 1,
                     .options = {.bucket_cap_mb = variant / 12 % 2 == 0 ? 25.0 : 1.0,
                                 .gradient_as_bucket_view = variant / 24 % 2 == 0}}
          .run();
    }
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
