// SharedStep. The judge is the plain optimizer on the same gradients: the same bits. shared_step_errors_test.cpp has
// its errors, and deaths.
#include "lockstep/nn/shared_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/lr_schedules.h"
#include "nn/sharded_parameters.h"
#include "nn/shared_step/optimizer_kinds.h"
#include "nn/shared_step/own_step.h"
#include "nn/twins.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;

struct SharedKind {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(const Groups&, const SharedStepOptions&)> shared;
  std::function<std::unique_ptr<optim::Optimizer>(const Groups&)> plain;
};

template <typename Inner, typename Options>
SharedKind shared_kind(const std::string& name, const Options& options) {
  return {name,
          [options](const Groups& groups, const SharedStepOptions& shared) {
            return std::make_unique<SharedStep<Inner>>(groups, options, shared);
          },
          [options](const Groups& groups) { return std::make_unique<Inner>(groups, options); }};
}

std::vector<SharedKind> shared_kinds() {
  return {shared_kind<optim::SGD>("SGD", optim::SGDOptions(0.1)),
          shared_kind<optim::SGD>("momentum", optim::SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01)),
          shared_kind<optim::SGD>("Nesterov", optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
          shared_kind<optim::Adam>("Adam", optim::AdamOptions(0.01).weight_decay(0.1)),
          shared_kind<optim::Adam>("AMSGrad", optim::AdamOptions(0.01).amsgrad(true)),
          shared_kind<optim::AdamW>("AdamW", optim::AdamWOptions(0.01)),
          shared_kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.1))};
}

// Those of every kind, and two that have several tiles, one with another order of elements.
std::vector<Tensor> tiled_parameters() {
  std::vector<Tensor> all = parameters_of_every_kind();
  auto generator = at::detail::createCPUGenerator(5);
  all.push_back(torch::randn({50021}, generator).requires_grad_());
  all.push_back(torch::randn({201, 171}, generator).t().contiguous().t().requires_grad_());
  return all;
}

// Two groups, the second with options of its own.
Groups two_groups(const std::vector<Tensor>& all, const optim::Optimizer& like) {
  Groups groups = groups_with({{all[0], all[1], all[2], all[7]}, {all[3], all[4], all[5], all[8]}});
  groups[1].set_options(like.defaults().clone());
  groups[1].options().set_lr(0.03);
  return groups;
}

class SharedStepMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SharedStepMulti, testing::Values(1, 2, 3, 4));

TEST_P(SharedStepMulti, TakesTheStepsOfThePlainOptimizer) {
  run_processes(GetParam(), [](int) {
    const Rank world;
    for (const SharedKind& one : shared_kinds()) {
      for (const bool fused : {false, true}) {
        const std::vector<Tensor> mine = tiled_parameters();
        const std::vector<Tensor> theirs = tiled_parameters();
        const auto like = one.plain(groups_with({{}}));
        const auto ours = one.shared(two_groups(mine, *like), {.fused = fused});
        const auto plain = one.plain(two_groups(theirs, *like));
        const auto both = {ours.get(), plain.get()};
        for (int step = 0; step < 6; ++step) {
          if (step == 2) {
            for (optim::Optimizer* optimizer : both) {
              for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() / 2);
            }
          }
          // LibTorch's own Adagrad cannot step with parameters that were added.
          if (step == 3 && one.name != "Adagrad") {
            ours->add_param_group(std::vector<Tensor>{mine[6]});
            plain->add_param_group(std::vector<Tensor>{theirs[6]});
          }
          for (const auto* all : {&mine, &theirs}) {
            set_random_gradients(*all, step);
            if (step < 2) (*all)[7].mutable_grad().reset();  // its first step is later
            if (step == 4) (*all)[0].mutable_grad().reset();
          }
          if (fused) {  // what has no kernel takes the whole plain step elsewhere, so here are only floats
            for (const auto* all : {&mine, &theirs}) {
              for (const int other : {1, 5}) (*all)[other].mutable_grad().reset();
              for (const Tensor& parameter : *all) {
                Tensor& gradient = parameter.mutable_grad();
                if (gradient.defined()) gradient = torch::empty_like(parameter.detach()).copy_(gradient);
              }
            }
            EXPECT_TRUE(fused_step(*plain)) << one.name;
          } else {
            plain->step();
          }
          ours->step();
          expect_same_bits(mine, theirs, fmt::format("{}, fused {}, step {}", one.name, fused, step));
        }
        ours->zero_grad();
        for (std::size_t i = 0; i < 6; ++i) EXPECT_FALSE(mine[i].grad().defined());
      }
    }
  });
}

// Every length of a kernel's rest, several tiles, and values at the limits of floats. With LibTorch's kernels as with
// the own ones, so the test holds where own_step_kernel() has none.
std::vector<Tensor> parameters_at_limits(int seed) {
  const std::vector<float> limits{0.0F, -0.0F, 1e-40F, -1e-42F, 1e-38F, 3e38F, INFINITY, -INFINITY, NAN};
  std::vector<Tensor> all;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  const auto add = [&](std::int64_t size) {
    const Tensor one = torch::randn({size}, generator) * torch::randn({size}, generator).exp();
    for (std::int64_t i = 0; i < size; i += 7 + i % 5)
      one.mutable_data_ptr<float>()[i] = limits[static_cast<std::size_t>(i) % limits.size()];
    all.push_back(one.requires_grad_());
  };
  for (std::int64_t size = 1; size <= 70; ++size) add(size);
  for (const std::int64_t size : {511, 513, 1024, 4999, 5000, 40007}) add(size);
  return all;
}

std::vector<Tensor> values_and_state(optim::Optimizer& optimizer, const Tensor& parameter) {
  std::vector<Tensor> all{parameter.detach()};
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (state == optimizer.state().end()) return all;
  for (const Tensor* one : nn_detail::state_tensors_of(*state->second)) {
    if (one != nullptr && one->defined()) all.push_back(*one);
  }
  return all;
}

TEST(SharedStepMulti, FusedStepsHaveTheBitsOfLibTorchsKernels) {
  run_processes(2, [](int) {
    const Rank world;
#if TORCH_VERSION_MINOR >= 15
    if (at::get_cpu_capability() != "DEFAULT") {
      EXPECT_NE(nn_detail::own_step_kernel(), nullptr);
    }
#endif
    for (const SharedKind& one : shared_kinds()) {
      const std::vector<Tensor> mine = parameters_at_limits(1);
      const std::vector<Tensor> theirs = parameters_at_limits(1);
      const auto ours = one.shared(groups_with({mine}), {.fused = true});
      const auto plain = one.plain(groups_with({theirs}));
      for (int step = 0; step < 4; ++step) {
        const std::vector<Tensor> gradients = parameters_at_limits(2 + step);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          for (const auto* all : {&mine, &theirs}) (*all)[i].mutable_grad() = gradients[i].detach().clone();
        }
        ours->step();
        EXPECT_TRUE(fused_step(*plain));
        for (std::size_t i = 0; i < mine.size(); ++i) {
          const std::vector<Tensor> our_tensors = values_and_state(*ours, mine[i]);
          const std::vector<Tensor> their_tensors = values_and_state(*plain, theirs[i]);
          ASSERT_EQ(our_tensors.size(), their_tensors.size());
          for (std::size_t which = 0; which < our_tensors.size(); ++which) {
            // A NaN has no certain sign and payload.
            const Tensor a = torch::nan_to_num(our_tensors[which], 0.5, INFINITY, -INFINITY);
            const Tensor b = torch::nan_to_num(their_tensors[which], 0.5, INFINITY, -INFINITY);
            EXPECT_TRUE(torch::equal(a.view(torch::kInt), b.view(torch::kInt)))
                << fmt::format("{}, step {}, {} elements, tensor {}", one.name, step, mine[i].numel(), which);
            EXPECT_TRUE(torch::equal(our_tensors[which].isnan(), their_tensors[which].isnan()));
          }
        }
      }
    }
  });
}

struct TiedNet : torch::nn::Module {
  TiedNet() {
    for (torch::nn::Linear& one : layers) register_module("linear" + std::to_string(number++), one);
    frozen = register_parameter("frozen", torch::ones({8}), /*requires_grad=*/false);
    unused = register_parameter("unused", torch::ones({8}));
  }
  Tensor forward(Tensor x) {
    for (torch::nn::Linear& one : layers) x = torch::relu(one->forward(x));
    x = torch::nn::functional::linear(x, layers[1]->weight);  // tied
    return (x + frozen.sum()).pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers{torch::nn::Linear(30, 300), torch::nn::Linear(300, 300),
                                        torch::nn::Linear(300, 300)};
  int number = 0;
  Tensor frozen;
  Tensor unused;
};

// Under DistributedDataParallel: tied, frozen and unused parameters, accumulation, clipping, a scheduler, evaluation on
// one rank in between.
TEST_P(SharedStepMulti, TrainsAsThePlainOptimizer) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    const auto make = [] {
      torch::manual_seed(1);
      return std::make_shared<TiedNet>();
    };
    const auto ours = make();
    const auto theirs = make();
    const auto options = optim::AdamWOptions(0.01).weight_decay(0.1);
    SharedStep<optim::AdamW> shared(ours->parameters(), options);
    DistributedDataParallel our_ddp(ours);  // sends rank 0's values
    DistributedDataParallel their_ddp(theirs);
    optim::AdamW plain(their_ddp.parameters(), options);
    lockstep::optim::ExponentialLR our_scheduler(shared, 0.9);
    lockstep::optim::ExponentialLR their_scheduler(plain, 0.9);
    const auto train = [](auto& ddp, optim::Optimizer& optimizer, auto& scheduler, int step) {
      optimizer.zero_grad();
      for (int part = 0; part < 3; ++part) {
        const auto guard = ddp.no_sync(part < 2);
        ddp.forward(random_input({4, 30}, 3 * step + part)).backward();
      }
      clip_grad_norm_(*ddp.module(), 0.5);
      optimizer.step();
      scheduler.step();
    };
    for (int step = 0; step < 5; ++step) {
      train(our_ddp, shared, our_scheduler, step);
      if (rank == 0) {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(ours->forward(random_input({4, 30}, 100)).isfinite().item<bool>());
      }
      train(their_ddp, plain, their_scheduler, step);
      expect_same_bits(ours->parameters(), theirs->parameters(), fmt::format("step {}", step));
    }
  });
}

// The ranks have one copy in memory: what one rank writes is its own until the next step.
TEST(SharedStepMulti, ARanksWritesAreItsOwnUntilAllRanksHaveWritten) {
  run_processes(2, [](int rank) {
    const Rank world;
    const Tensor mine = torch::full({5000}, 1.0 + rank).requires_grad_();
    SharedStep<optim::SGD> optimizer(std::vector<Tensor>{mine}, optim::SGDOptions(0.5).momentum(0.5));
    EXPECT_TRUE(mine.eq(1).all().item<bool>()) << "rank 0's values count";
    const torch::NoGradGuard no_grad;
    mine.mul_(2);  // once on each rank
    barrier();
    EXPECT_TRUE(mine.eq(2).all().item<bool>()) << "not twice";
    mine.mutable_grad() = torch::ones({5000});
    optimizer.step();
    EXPECT_TRUE(mine.eq(1.5).all().item<bool>());
    // Without the version counter.
    mine.data().add_(1);
    optimizer.step();
    EXPECT_TRUE(mine.eq(2.5 - 0.75).all().item<bool>());
    if (rank == 1) mine.copy_(mine.clone());  // changes nothing, as a broadcast of rank 0's values
    optimizer.step();
    EXPECT_TRUE(mine.eq(2.5 - 0.75 - 0.875).all().item<bool>());
    expect_equal_on_all_ranks({mine}, "parameter");
  });
}

TEST(SharedStepMulti, MovingAveragesArePutInAndTakenBack) {
  run_processes(2, [](int) {
    const Rank world;
    const auto make = [] {
      torch::manual_seed(1);
      return torch::nn::Linear(50, 50);
    };
    const torch::nn::Linear ours = make();
    const torch::nn::Linear theirs = make();
    SharedStep<optim::SGD> shared(ours->parameters(), optim::SGDOptions(0.1));
    optim::SGD plain(theirs->parameters(), optim::SGDOptions(0.1));
    ExponentialMovingAverage our_average(*ours);
    ExponentialMovingAverage their_average(*theirs);
    for (int step = 0; step < 3; ++step) {
      for (const auto& [net, average, optimizer] :
           {std::tuple<const torch::nn::Linear*, ExponentialMovingAverage*, optim::Optimizer*>{&ours, &our_average,
                                                                                               &shared},
            {&theirs, &their_average, &plain}}) {
        set_random_gradients((*net)->parameters(), step);
        optimizer->step();
        average->update();
        const auto guard = average->swap_in();
        barrier();
      }
      expect_same_bits(ours->parameters(), theirs->parameters(), "parameters");
    }
  });
}

// Through files: shared to plain, plain to shared, at another number of ranks.
TEST_P(SharedStepMulti, ExchangesItsStateWithThePlainOptimizer) {
  const SharedScratchFolder folder;
  run_processes(GetParam(), [&folder](int rank) {
    const Rank world;
    for (const SharedKind& one : shared_kinds()) {
      const auto like = one.plain(groups_with({{}}));
      const std::vector<Tensor> mine = tiled_parameters();
      const std::vector<Tensor> theirs = tiled_parameters();
      const auto ours = one.shared(two_groups(mine, *like), {});
      const auto plain = one.plain(two_groups(theirs, *like));
      step_on(*ours, mine, 0, 3);
      step_on(*plain, theirs, 0, 3);
      const std::string file = folder.path() / "optimizer.pt";
      if (rank == get_world_size() - 1) torch::save(*ours, file);  // any rank has the whole state
      barrier();
      const auto second = one.plain(two_groups(theirs, *like));
      torch::load(*second, file);
      step_on(*second, theirs, 3, 5);
      barrier();
      if (rank == 0) torch::save(*second, file);
      barrier();
      step_on(*ours, mine, 3, 5);
      torch::load(*ours, file);  // the same state, in other memory
      step_on(*ours, mine, 5, 7);
      step_on(*second, theirs, 5, 7);
      expect_same_bits(mine, theirs, one.name);
      barrier();
    }
  });
}

// Two parts of a model, each with its own optimizer.
TEST(SharedStepMulti, SeveralOptimizersLiveSideBySide) {
  run_processes(2, [](int) {
    const Rank world;
    const std::vector<Tensor> mine = tiled_parameters();
    const std::vector<Tensor> theirs = tiled_parameters();
    const auto some = [](const std::vector<Tensor>& all, std::size_t from, std::size_t to) {
      return std::vector<Tensor>(all.begin() + static_cast<std::ptrdiff_t>(from),
                                 all.begin() + static_cast<std::ptrdiff_t>(to));
    };
    SharedStep<optim::SGD> first(some(mine, 0, 4), optim::SGDOptions(0.1).momentum(0.9));
    optim::SGD plain_first(some(theirs, 0, 4), optim::SGDOptions(0.1).momentum(0.9));
    SharedStep<optim::Adam> second(some(mine, 4, 9), optim::AdamOptions(0.1));
    optim::Adam plain_second(some(theirs, 4, 9), optim::AdamOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      step_on(first, mine, step, step + 1);
      step_on(second, mine, step, step + 1);
      step_on(plain_first, theirs, step, step + 1);
      step_on(plain_second, theirs, step, step + 1);
      expect_same_bits(mine, theirs, fmt::format("step {}", step));
    }
  });
}

// A closure runs once, before the step. When the optimizer is gone, the parameters are ordinary ones.
TEST(SharedStepMulti, ParametersOutliveTheOptimizer) {
  run_processes(2, [](int rank) {
    const Rank world;
    const Tensor mine = torch::ones({3000}).requires_grad_();
    {
      SharedStep<optim::SGD> optimizer(std::vector<Tensor>{mine}, optim::SGDOptions(1));
      const Tensor loss = optimizer.step([&] {
        const Tensor sum = mine.sum();
        sum.backward();
        return sum;
      });
      EXPECT_EQ(loss.item<double>(), 3000);
      EXPECT_EQ(optimizer.steps(), 1U);
    }
    barrier();
    EXPECT_TRUE(mine.eq(0).all().item<bool>());
    optim::SGD plain(std::vector<Tensor>{mine}, optim::SGDOptions(1));
    mine.mutable_grad() = torch::full({3000}, 1.0 + rank);
    plain.step();
    barrier();
    EXPECT_TRUE(mine.eq(-1 - rank).all().item<bool>()) << "each rank has its own";
  });
}

TEST(SharedStepMulti, FinishedRanksStepInTheJoinOfTheOthers) {
  run_processes(3, [](int rank) {
    const Rank world;
    const auto train = [&]<typename Optimizer>(Optimizer* /*kind*/) {
      torch::manual_seed(1);
      DistributedDataParallel ddp(torch::nn::Linear(60, 50));
      Optimizer optimizer(ddp.parameters(), optim::SGDOptions(0.1).momentum(0.9));
      const auto loop = [&] {
        for (int step = 0; step <= 2 * rank; ++step) {
          optimizer.zero_grad();
          ddp->forward(random_input({3, 60}, step)).square().mean().backward();
          optimizer.step();
        }
      };
      ddp.join(loop, {.after_shadow_pass = [&] { optimizer.step(); }});
      std::vector<Tensor> result;
      for (const Tensor& one : ddp.parameters()) result.push_back(one.detach().clone());
      return result;
    };
    const auto mine = train(static_cast<SharedStep<optim::SGD>*>(nullptr));
    expect_same_bits(mine, train(static_cast<optim::SGD*>(nullptr)), "parameter");
    expect_equal_on_all_ranks(mine, "parameter");
  });
}

// With several threads of LibTorch the bits are the same.
TEST(SharedStepMulti, ThreadsChangeNothing) {
  run_processes(2, [](int) {
    const Rank world;
    const std::vector<Tensor> mine = tiled_parameters();
    const std::vector<Tensor> theirs = tiled_parameters();
    optim::AdamW plain(theirs, optim::AdamWOptions(0.1));
    step_on(plain, theirs, 0, 3);
    torch::set_num_threads(3);
    SharedStep<optim::AdamW> shared(mine, optim::AdamWOptions(0.1));
    step_on(shared, mine, 0, 3);
    expect_same_bits(mine, theirs, "3 threads");
  });
}

}  // namespace
}  // namespace lockstep::test
