// ZeroRedundancyOptimizer. The judge is the plain optimizer on the same gradients: the same bits.
// zero_redundancy_errors_test.cpp has its errors.
#include "lockstep/nn/zero_redundancy_optimizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <map>

#include "lockstep/nn/fused_step.h"
#include "nn/error_texts.h"
#include "nn/sharded_optimizer/shard_plan.h"
#include "nn/sharded_parameters.h"
#include "nn/twins.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;

TEST(ShardPlan, GivesTheLargestToTheLeastLoaded) {
  std::vector<std::int64_t> load(3, 0);
  EXPECT_EQ(nn_detail::assign_owners({5, 9, 5, 1, 5, 0}, load), (std::vector<int>{1, 0, 2, 2, 1, 2}));
  EXPECT_EQ(load, (std::vector<std::int64_t>{9, 10, 6}));
  EXPECT_EQ(nn_detail::assign_owners({2, 2}, load), (std::vector<int>{2, 2}));  // a group that is added later
}

struct Kind {
  std::string name;
  std::function<std::unique_ptr<ShardedOptimizer>(const Groups&, const ZeroRedundancyOptions&)> sharded;
  std::function<std::unique_ptr<optim::Optimizer>(const Groups&)> plain;
};

template <typename Inner, typename Options>
Kind kind(const std::string& name, const Options& options) {
  return {name,
          [options](const Groups& groups, const ZeroRedundancyOptions& zero) {
            return std::make_unique<ZeroRedundancyOptimizer<Inner>>(groups, options, zero);
          },
          [options](const Groups& groups) { return std::make_unique<Inner>(groups, options); }};
}

std::vector<Kind> kinds() {
  return {kind<optim::SGD>("SGD", optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
          kind<optim::Adam>("Adam", optim::AdamOptions(0.01).amsgrad(true)),
          kind<optim::AdamW>("AdamW", optim::AdamWOptions(0.01)),
          kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
          kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1).lr_decay(0.01))};
}

// Two groups with options of their own; the last parameter comes later.
Groups groups_of(const std::vector<Tensor>& all, const optim::Optimizer* like = nullptr) {
  Groups groups = groups_with({{all[0], all[1], all[2]}, {all[3], all[4], all[5]}});
  if (like != nullptr) groups[1].set_options(like->defaults().clone());
  if (like != nullptr) groups[1].options().set_lr(0.03);
  return groups;
}

class ZeroRedundancyOptimizerMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ZeroRedundancyOptimizerMulti, testing::Values(1, 2, 3, 4, 7));

TEST_P(ZeroRedundancyOptimizerMulti, TakesTheStepsOfThePlainOptimizer) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const Kind& one : kinds()) {
      const std::map<double, int> caps{{25.0, 1}, {1.0 / 1024, 2}, {std::numeric_limits<double>::infinity(), 3}};
      for (const auto& [cap, copies] : caps) {  // also in blocks of 1 KiB
        const std::vector<Tensor> mine = parameters_of_every_kind();
        const std::vector<Tensor> theirs = parameters_of_every_kind();
        const auto defaults = one.plain(groups_with({{}}));
        const auto ours = one.sharded(groups_of(mine, defaults.get()), {.bucket_cap_mb = cap, .copies = copies});
        const auto plain = one.plain(groups_of(theirs, defaults.get()));
        for (int step = 0; step < 6; ++step) {
          if (step == 2) {
            for (optim::Optimizer* optimizer : {static_cast<optim::Optimizer*>(ours.get()), plain.get()}) {
              for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() / 2);
            }
          }
          // LibTorch's own Adagrad cannot step with a group that was added.
          if (step == 3 && one.name != "Adagrad") {
            ours->add_param_group(std::vector<Tensor>{mine[6]});
            plain->add_param_group(std::vector<Tensor>{theirs[6]});
          }
          set_random_gradients(mine, step);
          set_random_gradients(theirs, step);
          ours->step();
          plain->step();
          expect_same_bits(mine, theirs, fmt::format("{}, cap {} MiB, step {}", one.name, cap, step));
        }
        ours->zero_grad();
        for (std::size_t i = 0; i < 6; ++i) EXPECT_FALSE(mine[i].grad().defined());
      }
    }
  });
}

// With a closure it is the plain optimizer's step.
TEST_P(ZeroRedundancyOptimizerMulti, TakesFusedSteps) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const Kind& one : kinds()) {
      for (const bool closure : {false, true}) {
        const std::vector<Tensor> all = parameters_of_every_kind();
        const std::vector<Tensor> mine{all[0], all[2], all[3], all[6]};  // floats in the order of their indices
        std::vector<Tensor> theirs;
        theirs.reserve(mine.size());
        for (const Tensor& parameter : mine) theirs.push_back(parameter.detach().clone().requires_grad_());
        const auto ours = one.sharded(groups_with({mine}), {.fused = true});
        const auto plain = one.plain(groups_with({theirs}));
        for (int step = 0; step < 4; ++step) {
          set_random_gradients(mine, step);
          set_random_gradients(theirs, step);
          if (closure) {
            ours->step([] { return torch::zeros({}); });
            plain->step();
          } else {
            ours->step();
            EXPECT_EQ(fused_step(*plain), one.name != "RMSprop");
          }
          expect_same_bits(mine, theirs, one.name);
        }
      }
    }
  });
}

TEST_P(ZeroRedundancyOptimizerMulti, KeepsOnlyItsShareOfTheState) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    std::vector<Tensor> all;
    for (int i = 0; i < 2 * get_world_size(); ++i) all.push_back(torch::zeros({1000}).requires_grad_());
    for (const int copies : {1, 2}) {
      ZeroRedundancyOptimizer<optim::Adam> optimizer(all, optim::AdamOptions(0.01), {.copies = copies});
      const auto parts = static_cast<std::size_t>(std::min(copies, get_world_size()));
      set_random_gradients(all, 0);
      optimizer.step();
      EXPECT_EQ(optimizer.state_bytes(), sizeof(float) * 2 * 2 * 1000 * parts) << "Adam's two, of two parameters";
      EXPECT_EQ(optimizer.local_optimizer().param_groups()[0].params().size(), 2 * parts);
      EXPECT_TRUE(optimizer.state().empty());
    }
  });
}

// Through files as torch::save writes them: sharded to plain, plain to sharded, sharded to sharded.
TEST_P(ZeroRedundancyOptimizerMulti, ExchangesItsStateWithThePlainOptimizer) {
  const SharedScratchFolder folder;
  run_processes(GetParam(), [&folder](int) {
    const Rank rank;
    const int saver = get_world_size() - 1;
    for (const Kind& one : kinds()) {
      const std::vector<Tensor> a = parameters_of_every_kind();
      const std::vector<Tensor> b = parameters_of_every_kind();
      const auto ours = one.sharded(groups_of(a), {.copies = 1 + saver % 2});
      const auto plain = one.plain(groups_of(b));
      step_on(*ours, a, 0, 3);
      step_on(*plain, b, 0, 3);
      ours->consolidate_state_dict(saver);
      const std::string path = folder.path(one.name);
      if (get_rank() == saver) {
        torch::save(*ours, path);
        const auto from_ours = one.plain(groups_of(b));
        torch::load(*from_ours, path);
        step_on(*from_ours, b, 3, 5);
        torch::save(*from_ours, path);
      } else {
        expect_in(error_of([&] { ours->consolidated(); }), {"consolidate_state_dict"});
        step_on(*plain, b, 3, 5);
      }
      barrier();
      step_on(*ours, a, 3, 5);
      expect_same_bits(a, b, one.name + " from sharded to plain");
      expect_in(error_of([&] { ours->consolidated(); }), {"after the last step"});

      const auto from_plain = one.sharded(groups_of(a), {.copies = 2});
      torch::load(*from_plain, path);
      step_on(*from_plain, a, 5, 7);
      const auto judge = one.plain(groups_of(b));
      torch::load(*judge, path);
      step_on(*judge, b, 5, 7);
      expect_same_bits(a, b, one.name + " from plain to sharded");

      const auto copied = one.sharded(groups_of(a), {});
      copied->load_consolidated(*judge);
      step_on(*copied, a, 7, 8);
      step_on(*judge, b, 7, 8);
      expect_same_bits(a, b, one.name + " from the plain optimizer itself");
    }
  });
}

// What was saved before the first step has no state: the present one goes. Adagrad begins with one.
TEST_P(ZeroRedundancyOptimizerMulti, LoadsAnOptimizerThatHasTakenNoStep) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const ScratchFolder folder;
    for (const bool from_file : {true, false}) {
      for (const Kind& one : kinds()) {
        const std::vector<Tensor> a = parameters_of_every_kind();
        const std::vector<Tensor> b = parameters_of_every_kind();
        const auto fresh = one.plain(groups_of(b));
        const auto ours = one.sharded(groups_of(a), {});
        step_on(*ours, a, 0, 3);
        if (from_file) {
          torch::save(*fresh, folder.path("fresh"));
          torch::load(*ours, folder.path("fresh"));
        } else {
          ours->load_consolidated(*fresh);
        }
        {
          const torch::NoGradGuard no_grad;
          for (std::size_t i = 0; i < a.size(); ++i) a[i].copy_(b[i]);
        }
        step_on(*ours, a, 3, 5);
        step_on(*fresh, b, 3, 5);
        expect_same_bits(a, b, one.name + (from_file ? " from a file" : " from the optimizer itself"));
      }
    }
  });
}

// Of a training in another dtype, as in Python.
TEST_P(ZeroRedundancyOptimizerMulti, LoadedStateTakesTheDtypeOfItsParameter) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const ScratchFolder folder;
    for (const Kind& one : kinds()) {
      const std::vector<Tensor> a = parameters_of_every_kind();
      std::vector<Tensor> b;
      for (const Tensor& parameter : a) b.push_back(parameter.detach().to(torch::kHalf).requires_grad_());
      const auto other = one.plain(groups_of(b));
      step_on(*other, b, 0, 1);
      torch::save(*other, folder.path("other"));
      const auto ours = one.sharded(groups_of(a), {});
      step_on(*ours, a, 0, 1);
      const std::size_t bytes = ours->state_bytes();
      ours->load_consolidated(*other);
      EXPECT_EQ(ours->state_bytes(), bytes) << one.name;
      torch::load(*ours, folder.path("other"));
      EXPECT_EQ(ours->state_bytes(), bytes) << one.name << " from a file";
    }
  });
}

// A model of its own kind: closures, frozen parameters, sparse gradients, schedulers, under DistributedDataParallel.
struct FrozenNetImpl : torch::nn::Module {
  FrozenNetImpl() {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 16).sparse(true)));
    body = register_module("body", torch::nn::Linear(16, 40));
    frozen = register_module("frozen", torch::nn::Linear(40, 40));
    head = register_module("head", torch::nn::Linear(40, 3));
    for (Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) { return head(torch::relu(frozen(torch::relu(body(words(x)))))); }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear body{nullptr}, frozen{nullptr}, head{nullptr};
};
TORCH_MODULE(FrozenNet);

TEST_P(ZeroRedundancyOptimizerMulti, TrainsInsideDistributedDataParallel) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const auto train = [](const auto& make) {
      torch::manual_seed(1);
      FrozenNet net;
      DistributedDataParallel ddp(net);
      const std::unique_ptr<optim::Optimizer> optimizer = make(ddp.parameters());
      optim::StepLR scheduler(*optimizer, /*step_size=*/2, /*gamma=*/0.5);
      for (int step = 0; step < 6; ++step) {
        const Tensor x = random_input({8, 4}, step).mul(100).to(torch::kLong).remainder(50);
        if (step == 4) {
          for (Tensor& parameter : net->frozen->parameters()) parameter.requires_grad_(true);
        }
        int calls = 0;
        const Tensor loss = optimizer->step([&] {
          ++calls;
          optimizer->zero_grad();
          Tensor value = ddp->forward(x).square().mean();
          value.backward();
          return value;
        });
        EXPECT_EQ(calls, 1);
        EXPECT_TRUE(loss.requires_grad());
        scheduler.step();
      }
      return net;
    };
    const optim::AdagradOptions options(0.1);  // of LibTorch's optimizers the one that takes sparse gradients
    const FrozenNet ours = train([&](const std::vector<Tensor>& all) {
      return std::make_unique<ZeroRedundancyOptimizer<optim::Adagrad>>(all, options);
    });
    const FrozenNet theirs =
        train([&](const std::vector<Tensor>& all) { return std::make_unique<optim::Adagrad>(all, options); });
    expect_same_bits(ours->parameters(), theirs->parameters(), "model");
    expect_equal_on_all_ranks(ours->parameters(), "parameter");
  });
}

// An optimizer that LibTorch does not have, with an argument that is no option.
class SignOptimizer : public optim::Optimizer {
 public:
  SignOptimizer(const Groups& groups, double scale)
      : Optimizer(groups, std::make_unique<optim::SGDOptions>(0.1)), scale_(scale) {}
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss = closure ? closure() : Tensor();
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (Tensor& parameter : group.params()) {
        parameter.sub_(parameter.grad().sign(), group.options().get_lr() * scale_);
        state_[parameter.unsafeGetTensorImpl()] = std::make_unique<optim::SGDParamState>();
      }
    }
    return loss;
  }

 private:
  double scale_;
};

TEST(ZeroRedundancyOptimizerOwnMulti, TakesAnyOptimizerByAFunctionAndServesGroups) {
  run_processes(4, [](int) {
    const Rank rank;
    const ProcessGroup pair = new_subgroups(2);
    const std::vector<Tensor> mine = parameters_of_every_kind();
    const std::vector<Tensor> theirs = parameters_of_every_kind();
    ShardedOptimizer ours(groups_with({mine}), std::make_unique<optim::SGDOptions>(0.1),
                          [](const Groups& groups) { return std::make_unique<SignOptimizer>(groups, 0.5); },
                          {.process_group = pair});
    SignOptimizer plain(groups_with({theirs}), 0.5);
    step_on(ours, mine, 0, 3);
    step_on(plain, theirs, 0, 3);
    expect_same_bits(mine, theirs, "own optimizer");
    EXPECT_LT(ours.owner_of(mine[0]), 2) << "a group rank";
  });
}

// Lazily conjugated and negated ones; ranks need the same elements, not the same bits.
TEST(ZeroRedundancyOptimizerOwnMulti, SendsLazyParametersByValue) {
  run_processes(3, [](int number) {
    const Rank world;
    const auto made = [](bool lazy) {
      std::vector<Tensor> all;
      for (int i = 0; i < 6; ++i) {
        const Tensor value = torch::arange(12).view({3, 4}) * c10::complex<double>(1, 0.5 + i);
        const Tensor plain = i % 3 == 0 ? value.t().contiguous().t() : value;
        all.push_back(!lazy ? plain : i % 2 == 0 ? plain.conj_physical().conj() : at::_neg_view(plain.neg()));
        all.back() = all.back().detach().requires_grad_();
      }
      return all;
    };
    const std::vector<Tensor> mine = made(number > 0);
    const std::vector<Tensor> theirs = made(false);
    ZeroRedundancyOptimizer<optim::SGD> ours(mine, optim::SGDOptions(0.1).momentum(0.9));
    optim::SGD plain(theirs, optim::SGDOptions(0.1).momentum(0.9));
    step_on(ours, mine, 0, 3);
    step_on(plain, theirs, 0, 3);
    expect_same_bits(mine, theirs, "lazy");
  });
}

// In which order a rank's memory has a kernel's dimensions is its own affair.
TEST_P(ZeroRedundancyOptimizerMulti, SendsKernelsByValueWhateverTheirLayout) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    const auto layout = [](bool last) {
      return last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
    };
    // Channels-last on no rank, on all, on rank 0 alone, on all but rank 0.
    const std::vector<bool> cases{false, true, rank == 0, rank != 0};
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<Tensor> mine = parameters_of_every_kind();
      const std::vector<Tensor> theirs = parameters_of_every_kind();
      // Or in blocks of 104 bytes.
      ZeroRedundancyOptimizer<optim::SGD> ours(mine, optim::SGDOptions(0.1), {.bucket_cap_mb = i % 2 == 0 ? 25 : 1e-4});
      optim::SGD plain(theirs, optim::SGDOptions(0.1));
      mine[4].set_data(mine[4].contiguous(layout(cases[i])));
      step_on(ours, mine, 0, 2);
      mine[4].set_data(mine[4].contiguous(layout(!cases[i])));
      step_on(ours, mine, 2, 4);
      step_on(plain, theirs, 0, 4);
      expect_same_bits(mine, theirs, fmt::format("layouts {}", i));
      for (const auto& [all, optimizer] : {std::pair{&mine, static_cast<optim::Optimizer*>(&ours)},
                                           std::pair{&theirs, static_cast<optim::Optimizer*>(&plain)}}) {
        (*all)[4].mutable_grad().reset();
        (*all)[4].set_data((*all)[4].detach().contiguous().view({12, 25}));  // other dimensions
        step_on(*optimizer, *all, 4, 5);
      }
      expect_same_bits(mine, theirs, fmt::format("other dimensions, layouts {}", i));
    }
  });
}

// A parameter that takes the place of another may get the address of one that has gone, and not on every rank.
TEST(ZeroRedundancyOptimizerOwnMulti, KnowsReplacedParametersFromThoseBefore) {
  run_processes(3, [](int rank) {
    const Rank world;
    std::vector<Tensor> all = parameters_of_every_kind();
    std::vector<Tensor> kept;  // on one rank only
    ZeroRedundancyOptimizer<optim::SGD> optimizer(all, optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 12; ++step) {
      if (rank == 1) kept.push_back(all[0]);
      all[0] = torch::ones({5 + step}).requires_grad_();
      optimizer.param_groups()[0].params()[0] = all[0];
      step_on(optimizer, all, step, step + 1);
      expect_equal_on_all_ranks({torch::tensor(optimizer.owner_of(all[0])), all[0]}, fmt::format("step {}", step));
    }
  });
}

}  // namespace
}  // namespace lockstep::test
