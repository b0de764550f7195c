// SharedStep with average_gradients: the step takes the mean itself. The judge is the plain way: an all-reduce, then
// the plain optimizer (fused_step), the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "lockstep/c10d/collectives.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/shared_step.h"
#include "nn/error_texts.h"
#include "nn/sharded_parameters.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;

class SharedStepAverageMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SharedStepAverageMulti, testing::Values(1, 2, 3, 4, 5));

std::vector<Tensor> parameters_to_average() {
  std::vector<Tensor> all = parameters_of_every_kind();
  auto generator = at::detail::createCPUGenerator(5);
  all.push_back(torch::randn({50021}, generator).requires_grad_());
  all.push_back(torch::randn({201, 171}, generator).t().contiguous().t().requires_grad_());
  return all;
}

// Gradients in memory of the program: step() copies them.
TEST_P(SharedStepAverageMulti, TakesTheMeanOfGradientsAnywhere) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    const std::vector<Tensor> mine = parameters_to_average();
    const std::vector<Tensor> theirs = parameters_to_average();
    const auto options = optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true);
    SharedStep<optim::Adam> ours(mine, options, {.average_gradients = true});
    optim::Adam plain(theirs, options);
    for (int step = 0; step < 4; ++step) {
      set_random_gradients(mine, 10 * step + rank);
      set_random_gradients(theirs, 10 * step + rank);
      if (step == 1) {
        for (const auto* all : {&mine, &theirs}) (*all)[7].mutable_grad().reset();
      }
      for (const Tensor& one : theirs) {
        if (one.grad().defined()) all_reduce(one.mutable_grad(), {.op = c10d::ReduceOp::AVG});
      }
      const Tensor before = mine[0].grad().clone();
      ours.step();
      plain.step();
      EXPECT_TRUE(torch::equal(mine[0].grad(), before)) << "it stays this rank's own";
      expect_same_bits(mine, theirs, fmt::format("step {}", step));
    }
  });
}

struct UnevenNet : torch::nn::Module {
  UnevenNet() {
    register_module("first", first);
    register_module("second", second);
    sometimes = register_parameter("sometimes", torch::ones({20000}));
    unused = register_parameter("unused", torch::ones({8}));
  }
  Tensor forward(const Tensor& x, bool all) {
    const Tensor y = torch::nn::functional::linear(torch::relu(first->forward(x)), second->weight);
    const Tensor loss = torch::nn::functional::linear(torch::relu(y), second->weight).square().mean();  // tied
    return all ? loss + (sometimes * sometimes * x.sum()).mean() : loss;
  }
  torch::nn::Linear first{33, 301};
  torch::nn::Linear second{301, 301};
  Tensor sometimes;
  Tensor unused;
};

std::shared_ptr<UnevenNet> seeded_net() {
  torch::manual_seed(1);
  return std::make_shared<UnevenNet>();
}

// Under DistributedDataParallel, where autograd computes gradients in memory that the ranks share.
template <typename Optimizer, typename Options>
void train_both(int rank, const Options& options, bool accumulates) {
  const auto ours = seeded_net();
  const auto theirs = seeded_net();
  DistributedDataParallel our_ddp(ours);
  DistributedDataParallel their_ddp(theirs);
  our_ddp.register_comm_hook(make_noop_hook());
  SharedStep<Optimizer> shared(our_ddp.parameters(), options, {.fused = true, .average_gradients = true});
  Optimizer plain(their_ddp.parameters(), options);
  for (int step = 0; step < 5; ++step) {
    const auto pass = [&](auto& ddp, optim::Optimizer& optimizer) {
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      for (int part = 0; part < (accumulates ? 3 : 1); ++part) {
        const auto guard = ddp.no_sync(accumulates && part < 2);
        ddp.forward(random_input({4, 33}, 100 * step + 10 * part + rank), rank == step % get_world_size()).backward();
      }
    };
    pass(our_ddp, shared);
    shared.step();
    pass(their_ddp, plain);
    fused_step(plain);
    expect_same_bits(ours->parameters(), theirs->parameters(), fmt::format("step {}", step));
  }
  if (get_world_size() > 1) {
    EXPECT_GT(our_ddp.reducer().placement().in_place, 0U);
  }
}

TEST_P(SharedStepAverageMulti, TrainsAsThePlainOptimizerUnderDistributedDataParallel) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    for (const bool accumulates : {false, true}) {
      train_both<optim::SGD>(rank, optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01), accumulates);
      train_both<optim::AdamW>(rank, optim::AdamWOptions(0.01), accumulates);
    }
    train_both<optim::Adagrad>(rank, optim::AdagradOptions(0.1), false);
  });
}

TEST_P(SharedStepAverageMulti, ClipsByTheNormOfTheMean) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    for (const double max_norm : {0.5, 1e6}) {
      const auto make = [] { return std::vector<Tensor>{torch::ones({40003}).requires_grad_(), torch::ones({9, 7})}; };
      const std::vector<Tensor> mine = make();
      const std::vector<Tensor> theirs = make();
      SharedStep<optim::SGD> ours(mine, optim::SGDOptions(0.1),
                                  {.fused = true, .average_gradients = true, .max_norm = max_norm});
      optim::SGD plain(theirs, optim::SGDOptions(0.1));
      set_random_gradients(mine, rank);
      set_random_gradients(theirs, rank);
      for (const Tensor& one : theirs) all_reduce(one.mutable_grad(), {.op = c10d::ReduceOp::AVG});
      const double norm = clip_grad_norm_({{"a", theirs[0]}, {"b", theirs[1]}}, max_norm);
      ours.step();
      fused_step(plain);
      EXPECT_NEAR(ours.gradient_norm(), norm, 1e-5 * norm);
      for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-6, 1e-7));
      if (max_norm > 1) expect_same_bits(mine, theirs, "not clipped");
      expect_equal_on_all_ranks(mine, "parameter");
    }
  });
}

TEST(SharedStepAverageGroupMulti, TakesTheMeanOfAPartOfTheWorld) {
  run_processes(3, [](int rank) {
    const Rank world;
    const ProcessGroup group = new_group({2, 0});
    if (rank == 1) return;
    const std::vector<Tensor> mine = parameters_to_average();
    const std::vector<Tensor> theirs = parameters_to_average();
    SharedStep<optim::SGD> ours(mine, optim::SGDOptions(0.1).momentum(0.9),
                                {.process_group = group, .average_gradients = true});
    optim::SGD plain(theirs, optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      set_random_gradients(mine, 10 * step + rank);
      set_random_gradients(theirs, 10 * step + rank);
      for (const Tensor& one : theirs)
        all_reduce(one.mutable_grad(), {.op = c10d::ReduceOp(c10d::ReduceOp::AVG), .group = group});
      ours.step();
      plain.step();
      expect_same_bits(mine, theirs, fmt::format("step {}", step));
    }
  });
}

// Rank r has r + 1 inputs; ranks without inputs count as zero.
TEST(SharedStepAverageJoinMulti, StepsAsThePlainOptimizer) {
  run_processes(3, [](int rank) {
    const Rank world;
    const auto ours = seeded_net();
    const auto theirs = seeded_net();
    DistributedDataParallel our_ddp(ours);
    DistributedDataParallel their_ddp(theirs);
    our_ddp.register_comm_hook(make_noop_hook());
    const auto options = optim::SGDOptions(0.1).momentum(0.9);
    SharedStep<optim::SGD> shared(our_ddp.parameters(), options, {.fused = true, .average_gradients = true});
    optim::SGD plain(their_ddp.parameters(), options);
    const auto train = [rank](auto& ddp, optim::Optimizer& optimizer, const std::function<void()>& step) {
      const auto loop = [&] {
        for (int i = 0; i <= rank; ++i) {
          optimizer.zero_grad();
          ddp.forward(random_input({4, 33}, 10 * i + rank), rank == i).backward();
          step();
        }
      };
      ddp.join(loop, {.after_shadow_pass = step});
    };
    for (int part = 0; part < 2; ++part) {
      train(our_ddp, shared, [&] { shared.step(); });
      train(their_ddp, plain, [&] { fused_step(plain); });
      expect_same_bits(ours->parameters(), theirs->parameters(), fmt::format("part {}", part));
    }
    EXPECT_EQ(shared.steps(), 6U);
    const auto loop = [&] {
      our_ddp.forward(random_input({4, 33}, rank), true).backward();
      expect_in(error_of([&] { shared.step(); }), {"divide_by_initial_world_size = false", "average_gradients off"});
    };
    our_ddp.join(loop, {.divide_by_initial_world_size = false});
  });
}

// The scale is a power of two, so that unscaling changes no digits.
TEST_P(SharedStepAverageMulti, SkipsTheStepsOfGradScalerOnAllRanks) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    const auto make = [] { return std::vector<Tensor>{torch::ones({40003}).requires_grad_(), torch::ones({9, 7})}; };
    const std::vector<Tensor> mine = make();
    const std::vector<Tensor> theirs = make();
    SharedStep<optim::Adam> ours(mine, optim::AdamOptions(0.1), {.average_gradients = true});
    optim::Adam plain(theirs, optim::AdamOptions(0.1));
    GradScaler our_scaler({.init_scale = 1024});
    GradScaler their_scaler({.init_scale = 1024});
    for (int step = 0; step < 4; ++step) {
      for (const auto* all : {&mine, &theirs}) {
        set_random_gradients(*all, 10 * step + rank);
        if (step == 1 && rank == get_world_size() - 1) all->at(0).grad()[7] = std::numeric_limits<float>::infinity();
      }
      for (const Tensor& one : theirs) all_reduce(one.mutable_grad(), {.op = c10d::ReduceOp::AVG});
      EXPECT_EQ(our_scaler.step(ours), step != 1);
      EXPECT_EQ(their_scaler.step(plain), step != 1);
      our_scaler.update();
      their_scaler.update();
      EXPECT_EQ(our_scaler.get_scale(), their_scaler.get_scale());
      expect_same_bits(mine, theirs, fmt::format("step {}", step));
    }
  });
}

TEST(SharedStepAverageErrorsMulti, ClippingBeforeTheStepNamesMaxNorm) {
  run_processes(2, [](int) {
    const Rank world;
    torch::nn::Linear line(3, 3);
    set_random_gradients(line->parameters(), 1);
    {
      SharedStep<optim::SGD> averaging(line->parameters(), optim::SGDOptions(0.1), {.average_gradients = true});
      expect_in(error_of([&] { clip_grad_norm_(*line, 1.0); }), {"'weight'", "SharedStepOptions::max_norm"});
    }
    EXPECT_GT(clip_grad_norm_(*line, 1.0), 0);
  });
}

TEST(SharedStepAverageErrorsMulti, WhatItCannotDoIsAnErrorOfAllRanks) {
  run_processes(2, [](int rank) {
    const Rank world;
    const auto refused = [&](const Tensor& parameter, const SharedStepOptions& options,
                             const std::vector<std::string>& parts) {
      expect_in(error_of([&] {
                  SharedStep<optim::SGD> one(std::vector<Tensor>{parameter}, optim::SGDOptions(0.1), options);
                }),
                parts);
    };
    refused(torch::ones({8}).requires_grad_(), {.max_norm = 1}, {"max_norm is 1", "average_gradients"});
    refused(torch::ones({8}).requires_grad_(), {.average_gradients = rank == 0}, {"average_gradients true", "false"});
    refused(torch::ones({8}, torch::kComplexFloat).requires_grad_(), {.average_gradients = true},
            {"parameter 0 of group 0", "ComplexFloat"});
  });
}

// Rank 1 of 3 dies while it reads its own gradient, in the middle of the rest of a parameter. The gradient is in memory
// that the others see, and they finish the step with it.
TEST(SharedStepAverageFault, SurvivorsFinishTheStepWithTheGradientsOfTheDeadRank) {
  for (const bool clips : {false, true}) {
    run_processes_with_a_victim(
        3, /*victim=*/1,
        [clips](int rank, const std::filesystem::path& report) {
          constexpr std::int64_t kPage = 1024;
          constexpr std::int64_t kUnreadable = 104 * kPage;
          constexpr std::int64_t kRest = kUnreadable - 3;  // the place of 7 elements that fill no unit
          constexpr std::int64_t kElements = 6640 * 16 + 7;
          const Rank world;
          const auto make = [] {
            return std::vector<Tensor>{torch::linspace(0, 1, kElements).requires_grad_(), torch::ones({90000})};
          };
          const std::vector<Tensor> mine = make();
          const std::vector<Tensor> theirs = make();
          const SharedStepOptions options{.fused = true, .average_gradients = true, .max_norm = clips ? 1e9 : 0};
          SharedStep<optim::Adam> optimizer(mine, optim::AdamOptions(0.1), options);
          optim::Adam plain(theirs, optim::AdamOptions(0.1));
          const Tensor memory =
              default_group()->getBackend(torch::kCPU)->allocateTensor(kUnreadable + kPage + 90000, torch::kFloat);
          mine[0].mutable_grad() = memory.narrow(0, kRest + 7 - kElements, kElements);
          mine[1].mutable_grad() = memory.narrow(0, kUnreadable + kPage, 90000);
          std::string error = "no error";
          for (int step = 0; step < 2; ++step) {
            memory.fill_(rank + step);
            for (const Tensor& one : theirs) one.mutable_grad() = torch::full_like(one, 1.0 + step);  // the mean
            const bool dies_before = clips && step == 1;  // while the norm is measured
            if (!dies_before) fused_step(plain);
            if (step == 1 && rank == 1) {
              signal(SIGSEGV, [](int) { kill(getpid(), SIGKILL); });
              mprotect(memory.mutable_data_ptr<float>() + kUnreadable, kPage * sizeof(float), PROT_NONE);
            }
            error = error_of([&] { optimizer.step(); });
          }
          EXPECT_TRUE(optimizer.is_whole());
          EXPECT_EQ(optimizer.steps(), clips ? 1U : 2U);
          expect_same_bits(mine, theirs, error);
          std::ofstream(report) << error;
        },
        [clips](const std::filesystem::path& report) {
          std::ifstream file(report);
          const std::string text{std::istreambuf_iterator<char>(file), {}};
          expect_in(text, {"rank 1", fmt::format("parameters are whole, as after step {}", clips ? 1 : 2)});
        });
  }
}

}  // namespace
}  // namespace lockstep::test
