// The option after_shadow_pass of join: ranks that have finished take the steps of the others. The judge is the plain
// optimizer on the rank that trains to the end.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;

// `extra` is for the first steps alone, `own` is ignored, and the gradient of `table` is sparse.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    first = register_module("first", torch::nn::Linear(6, 5));
    extra = register_module("extra", torch::nn::Linear(5, 5));
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 5).sparse(true)));
    last = register_module("last", torch::nn::Linear(5, 2));
    own = register_parameter("own", torch::ones({5}));
  }
  Tensor loss(const Tensor& x, int step) {
    Tensor hidden = torch::tanh(first(x)) * own;
    if (step < 2) hidden = hidden + extra(hidden);
    return last(hidden + table(torch::full({x.size(0)}, step % 4, torch::kLong))).square().mean();
  }
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  torch::nn::Embedding table{nullptr};
  Tensor own;
};
TORCH_MODULE(Mixed);

using Ddp = DistributedDataParallel<Mixed>;
using Sharded = ZeroRedundancyOptimizer<optim::SGD>;

const optim::SGDOptions kSgd = optim::SGDOptions(0.1).momentum(0.9);

// A seeded model, its wrapper and an optimizer of all parameters but `own`.
template <typename Optimizer>
struct Trained {
  explicit Trained(const DistributedDataParallelOptions& options) : ddp(model(), options), optimizer(trained(), kSgd) {}

  // So many steps on this rank, in a join. `acts`: a rank that has finished steps too.
  void join(int steps, int parts, bool acts, JoinOptions options) {
    const auto loop = [&] {
      for (int count = 0; count < steps; ++count) take_step(parts);
    };
    if (acts) {
      options.after_shadow_pass = [&] {
        optimizer.step();
        ++shadowed;
      };
    }
    ddp.join(loop, options);
  }

  void take_step(int parts) {
    optimizer.zero_grad();
    accumulate_gradients(ddp, parts, [&](int part) { return ddp->loss(random_input({3, 6}, 10 * step + part), step); });
    optimizer.step();
    ++step;
  }

  std::vector<Tensor> trained() const {
    std::vector<Tensor> result;
    for (const auto& item : ddp.module()->named_parameters()) {
      if (item.key() != "own") result.push_back(item.value());
    }
    return result;
  }

  static Mixed model() {
    torch::manual_seed(1);
    return Mixed();
  }

  Ddp ddp;
  Optimizer optimizer;
  int step = 0;
  int shadowed = 0;
};

class JoinStepsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, JoinStepsMulti, testing::Values(1, 2, 3));

// Rank 0 finishes first or last, and may have no inputs at all.
void compare_optimizers(int number, const DistributedDataParallelOptions& options, const JoinOptions& join_options,
                        int parts, bool rank_0_first) {
  const int world = get_world_size();
  const int steps = 3 * (rank_0_first ? number : world - 1 - number);
  const int most = 3 * (world - 1);
  Trained<optim::SGD> plain(options);
  Trained<optim::SGD> stepping(options);
  Trained<Sharded> sharded(options);
  plain.join(steps, parts, /*acts=*/false, join_options);
  stepping.join(steps, parts, /*acts=*/true, join_options);
  sharded.join(steps, parts, /*acts=*/true, join_options);
  EXPECT_EQ(stepping.shadowed, most - steps);
  EXPECT_EQ(sharded.shadowed, most - steps);
  expect_equal_on_all_ranks(plain.trained(), "parameter");
  expect_same_bits(stepping.trained(), plain.trained(), "plain optimizer that steps, parameter");
  expect_same_bits(sharded.trained(), plain.trained(), "sharded optimizer, parameter");
  // The momentum too is that of a rank that has trained to the end.
  for (int more = 0; more < 2; ++more) {
    stepping.step = sharded.step = most + more;
    stepping.take_step(1);
    sharded.take_step(1);
  }
  expect_equal_on_all_ranks(stepping.trained(), "parameter after further steps");
  expect_same_bits(sharded.trained(), stepping.trained(), "further steps, parameter");
}

TEST_P(JoinStepsMulti, FinishedRanksTakeTheStepsOfTheOthers) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const bool view : {true, false}) {
      for (const bool initial : {true, false}) {
        for (const bool rank_0_first : {true, false}) {
          const DistributedDataParallelOptions options{
              .bucket_cap_mb = 0.0001, .gradient_as_bucket_view = view, .ignored_parameters = {"own"}};
          compare_optimizers(number, options, {.divide_by_initial_world_size = initial}, /*parts=*/view ? 1 : 3,
                             rank_0_first);
        }
      }
    }
  });
}

// Ranks with 1, 2, 3 inputs. What a finished rank has of its own passes is gone.
TEST_P(JoinStepsMulti, GradientsAreThoseOfTheRanksWithInputs) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    Mixed net = Trained<optim::SGD>::model();
    Ddp ddp(net, {.ignored_parameters = {"own"}});
    const auto loop = [&] {
      for (int step = 0; step <= number; ++step) {
        net->zero_grad();
        const auto x = random_input({3, 6}, step);
        (step == 0 ? ddp->loss(x, step) : net->last(ddp->first(x)).sum()).backward();
      }
    };
    int calls = 0;
    const auto check = [&] {
      ++calls;
      EXPECT_FLOAT_EQ(net->last->bias.grad()[0].item<float>(), 3) << "the mean of one input or two";
      EXPECT_TRUE(net->first->weight.grad().defined());
      EXPECT_FALSE(net->extra->weight.grad().defined()) << "no rank with inputs uses it";
      EXPECT_FALSE(net->table->weight.grad().defined()) << "no rank with inputs uses it";
      EXPECT_FALSE(net->own.grad().defined()) << "this rank has made no pass";
    };
    ddp.join(loop, {.divide_by_initial_world_size = false, .after_shadow_pass = check});
    EXPECT_EQ(calls, get_world_size() - 1 - number);
    ddp.join([&] { ddp->loss(random_input({3, 6}, 9), 9).backward(); }, {.after_shadow_pass = check});
    EXPECT_EQ(calls, get_world_size() - 1 - number) << "equally many inputs";
  });
}

// The highest rank alone has a loss that overflows, when the others have finished.
TEST_P(JoinStepsMulti, ScalersAndAveragesStayTogether) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int most = 2 * get_world_size();
    Trained<Sharded> one({});
    GradScaler scaler({.init_scale = 8});
    ExponentialMovingAverage ema(*one.ddp.module(), {.decay = 0.5});
    const auto take_step = [&] {
      scaler.step(one.optimizer);
      scaler.update();
      ema.update();
    };
    const auto loop = [&] {
      for (int step = 0; step < 2 * (number + 1); ++step) {
        one.optimizer.zero_grad();
        Tensor loss = one.ddp->loss(random_input({3, 6}, step), 9);
        if (step + 1 == most) loss = loss * std::numeric_limits<double>::infinity();
        scaler.scale(loss).backward();
        take_step();
      }
    };
    one.ddp.join(loop, {.after_shadow_pass = take_step});
    EXPECT_EQ(scaler.get_scale(), 4) << "one step was skipped";
    EXPECT_EQ(ema.updates(), most);
    expect_equal_on_all_ranks(one.trained(), "parameter");
    std::vector<Tensor> averages;
    for (const auto& [name, average] : ema.tensors()) averages.push_back(average);
    expect_equal_on_all_ranks(averages, "average");
  });
}

TEST(JoinStepsMulti, TheOptionIsGivenOnEveryRankOrOnNone) {
  run_processes(3, [](int number) {
    const Rank rank;
    Trained<optim::SGD> one({});
    for (const int steps : {0, 1}) {
      expect_in(error_of([&] { one.join(steps, 1, /*acts=*/number == 1, {}); }),
                {"join needs the same options", "option after_shadow_pass: true on rank(s) 1",
                 "option after_shadow_pass: false on rank(s) 0, 2"});
    }
    one.join(number + 1, 1, /*acts=*/true, {});
    EXPECT_EQ(one.shadowed, 2 - number);
    EXPECT_THROW(one.join(number + 1, 1, /*acts=*/true, {.throw_on_early_termination = true}), UnevenInputsError);
    one.join(2, 1, /*acts=*/true, {.enable = false});
    EXPECT_EQ(one.shadowed, 2 - number) << "no pass was shadowed";
  });
}

// The step fails on both ranks: on rank 1 in its loop, on rank 0 after a shadow pass.
TEST(JoinStepsMulti, AnErrorOfTheCallbackEndsTheJoin) {
  run_processes(2, [](int number) {
    const Rank rank;
    Trained<optim::SGD> one({});
    const auto fail = [] { throw std::runtime_error("the user's own"); };
    const auto loop = [&] {
      if (number == 0) return;
      one.ddp->loss(random_input({3, 6}, 0), 0).backward();
      fail();
    };
    EXPECT_THROW(one.ddp.join(loop, {.after_shadow_pass = fail}), std::runtime_error);
    one.take_step(1);  // a pass outside of a join
    expect_equal_on_all_ranks(one.trained(), "parameter");
    one.join(number + 1, 1, /*acts=*/true, {});
    expect_equal_on_all_ranks(one.trained(), "parameter");
  });
}

}  // namespace
}  // namespace lockstep::test
