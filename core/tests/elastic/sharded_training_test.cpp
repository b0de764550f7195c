// A sharded optimizer under ElasticTraining without deaths: what is refused, how a training begins, and groups that
// break on one rank at a chosen moment.
#include <sstream>

#include "elastic/program.h"

namespace lockstep::test {
namespace {

std::string text_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// The weights of the plain optimizer, after the same steps on as many ranks.
void expect_plain_weights(const Program& program) {
  Program plain{.micro_batches = program.micro_batches, .steps = program.steps, .adam = program.adam};
  train(plain, 0);
  EXPECT_TRUE(torch::equal(program.weights(), plain.weights()))
      << (program.weights() - plain.weights()).abs().max().item<double>();
}

TEST(ShardedTrainingMulti, IsThePlainTraining) {
  for (const int copies : {2, 3, 9}) {
    run_processes(3, [copies](int rank) {
      Program mine{.micro_batches = 4, .first_run = 5, .adam = copies == 2, .copies = copies};
      const ProcessGroupGuard guard("", kElasticWorld);
      EXPECT_EQ(train(mine, rank), 0);
      expect_plain_weights(mine);
    });
  }
}

TEST(ShardedTrainingMulti, SaysWhatItRefuses) {
  run_processes(2, [](int) {
    const ProcessGroupGuard guard("", kElasticWorld);
    torch::nn::Linear net(2, 2);
    using Sharded = ZeroRedundancyOptimizer<torch::optim::SGD>;
    const torch::optim::SGDOptions options(0.1);
    Sharded without_copies(net->parameters(), options);
    Sharded in_group(net->parameters(), options, {.process_group = new_group({0, 1}), .copies = 2});
    Sharded optimizer(net->parameters(), options, {.copies = 2});
    Sharded second(net->parameters(), options, {.copies = 2});
    ElasticTraining training({.seed = 1});
    training.add_model(*net);
    expect_in(text_of([&] { training.add_optimizer(without_copies); }), "Set ZeroRedundancyOptions::copies to 2");
    expect_in(text_of([&] { training.add_optimizer(in_group); }), "leave out process_group");
    training.add_optimizer(optimizer);
    expect_in(text_of([&] { training.add_optimizer(second); }), "a second one");

    const auto run = [&](const std::function<void(std::int64_t)>& update) {
      return text_of([&] {
        training.run(training.steps_done() + 1, {.gradients =
                                                     [&](ElasticStep&) {
                                                       for (const torch::Tensor& one : net->parameters())
                                                         one.mutable_grad() = torch::ones_like(one);
                                                     },
                                                 .update = update});
      });
    };
    EXPECT_EQ(run([&](std::int64_t) { optimizer.step(); }), "no error");
    EXPECT_EQ(run([&](std::int64_t) {}), "no error");
    optimizer.step();  // outside of a run() it is a plain sharded optimizer
    expect_in(run([&](std::int64_t) { optimizer.step([] { return torch::zeros({}); }); }), "takes no closure");
  });
  run_processes(2, [](int rank) {
    Program mine{.micro_batches = 2, .copies = 2};
    mine.in_update = [&](std::int64_t) { mine.optimizer->step(); };
    const ProcessGroupGuard guard("", kElasticWorld);
    expect_in(text_of([&] { train(mine, rank); }), "found a second one");
  });
  run_processes(2, [](int rank) {
    Program mine{.micro_batches = 2, .copies = 2};
    mine.before_run = [&] {
      if (rank == 1) mine.optimizer->add_param_group(std::vector{torch::ones({2}, torch::requires_grad())});
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    expect_in(text_of([&] { train(mine, rank); }), "give all groups to the constructor");
  });
}

// All ranks begin with the parameters and rates of rank 0.
TEST(ShardedTrainingMulti, BeginsWithTheStateOfRank0) {
  run_processes(3, [](int rank) {
    Program mine{.micro_batches = 3, .adam = true, .copies = 2};
    mine.before_run = [&] {
      if (rank == 0) return;
      const torch::NoGradGuard no_grad;
      for (torch::Tensor one : mine.net->parameters()) one.add_(rank);
      mine.optimizer->param_groups()[0].options().set_lr(0.1 * rank);
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    train(mine, rank);
    for (const torch::Tensor& other : all_gather_object(mine.weights()))
      EXPECT_TRUE(torch::equal(other, mine.weights()));
    expect_plain_weights(mine);
  });
}

// A state that all ranks have loaded, and one that rank 0 alone has loaded: the copies of two ranks are all state.
TEST(ShardedTrainingMulti, GoesOnFromALoadedState) {
  for (const int world : {2, 3}) {
    for (const bool on_all : {true, false}) {
      run_processes(world, [=](int rank) {
        const ProcessGroupGuard guard("", kElasticWorld);
        Program before{.micro_batches = world, .adam = true};
        train(before, rank);
        Program mine{.micro_batches = world, .adam = true, .copies = 2};
        Program plain{.micro_batches = world, .adam = true};
        const auto load = [&](Program& program) {
          const torch::NoGradGuard no_grad;
          for (std::size_t i = 0; i < program.net->parameters().size(); ++i)
            program.net->parameters()[i].copy_(before.net->parameters()[i]);
        };
        mine.before_run = [&] {
          load(mine);
          if (on_all || rank == 0)
            dynamic_cast<ShardedOptimizer&>(*mine.optimizer).load_consolidated(*before.optimizer);
        };
        plain.before_run = [&] {
          load(plain);
          std::ostringstream file;
          torch::save(*before.optimizer, file);
          std::istringstream read(file.str());
          torch::load(*plain.optimizer, read);
        };
        if (world == 3 && !on_all) {
          expect_in(text_of([&] { train(mine, rank); }), "another state than rank 0 had");
          return;
        }
        train(mine, rank);
        train(plain, rank);
        EXPECT_TRUE(torch::equal(mine.weights(), plain.weights()));
      });
    }
  }
}

#ifdef C10D_BACKEND_HAS_HOOKS

// Where rank 1 gets an error that tells of a death, although nobody has died.
struct Break {
  c10d::HookOpName op;
  int count;     // of the operations of this kind since the gradients
  bool is_sent;  // the operation has begun: the others go on
};

class ShardedTrainingBreakMulti : public testing::TestWithParam<int> {};

// Before a step's update the ranks meet (barrier 1). The exchange ends with barrier 2.
const std::vector<Break> kBreaks{{c10d::HookOpName::BARRIER, 1, false},   {c10d::HookOpName::BARRIER, 1, true},
                                 {c10d::HookOpName::ALLGATHER, 1, false}, {c10d::HookOpName::ALLGATHER, 1, true},
                                 {c10d::HookOpName::ALLGATHER, 2, false}, {c10d::HookOpName::ALLGATHER, 3, true},
                                 {c10d::HookOpName::BARRIER, 2, false},   {c10d::HookOpName::BARRIER, 2, true}};

TEST_P(ShardedTrainingBreakMulti, TheStepIsThatOfAPlainTraining) {
  const Break one = kBreaks.at(static_cast<std::size_t>(GetParam()));
  for (int world = 2; world <= 4; ++world) {
    run_processes(world, [&](int rank) {
      Program mine{.micro_batches = world, .adam = world == 3, .copies = 2};
      bool is_broken = false;
      mine.before_update = [&](std::int64_t step) {
        if (rank != 1 || step != 4 || std::exchange(is_broken, true)) return;
        const auto hook = [count = 0, one](const auto& args) mutable {
          if (args.name == one.op && ++count == one.count) throw BackendError(ErrorCode::kPeerFailed, "a test");
        };
        if (one.is_sent) {
          default_group()->registerPreHook(7, [](const c10d::PreHookArgs&) {});
          default_group()->registerPostHook(7, hook);
        } else {
          default_group()->registerPreHook(7, hook);
        }
      };
      const ProcessGroupGuard guard("", kElasticWorld);
      EXPECT_EQ(train(mine, rank), 1);
      EXPECT_EQ(get_world_size(), world);
      expect_plain_weights(mine);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Places, ShardedTrainingBreakMulti, testing::Range(0, static_cast<int>(kBreaks.size())));

// Breaks this rank's present world once.
void break_at(c10d::HookOpName op, bool is_sent) {
  const auto hook = [is_broken = false, op](const auto& args) mutable {
    if (args.name == op && !std::exchange(is_broken, true)) throw BackendError(ErrorCode::kPeerFailed, "a test");
  };
  if (is_sent) {
    default_group()->registerPreHook(7, [](const c10d::PreHookArgs&) {});
    default_group()->registerPostHook(7, hook);
  } else {
    default_group()->registerPreHook(7, hook);
  }
}

// In the exchange of one step, and before the update of the next one.
TEST(ShardedTrainingMulti, ABreakIsMendedInEachOfTwoSteps) {
  run_processes(3, [](int rank) {
    Program mine{.micro_batches = 3, .copies = 2};
    bool is_broken = false;
    mine.in_update = [&](std::int64_t step) {
      if (rank == 1 && step == 4) break_at(c10d::HookOpName::ALLGATHER, /*is_sent=*/false);
    };
    mine.before_update = [&](std::int64_t step) {
      if (rank == 1 && step == 5 && !std::exchange(is_broken, true))
        break_at(c10d::HookOpName::BARRIER, /*is_sent=*/false);
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    EXPECT_EQ(train(mine, rank), 2);
    expect_plain_weights(mine);
  });
}

// Rank 1 has an error that tells of a death in update, where the others are in the optimizer's step.
TEST(ShardedTrainingMulti, AnUpdateThatCommunicatesIsAnErrorOnAllRanks) {
  run_processes(3, [](int rank) {
    Program mine{.micro_batches = 3, .copies = 2};
    mine.in_update = [&](std::int64_t step) {
      if (rank == 1 && step == 4) throw BackendError(ErrorCode::kPeerFailed, "a test");
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    expect_in(text_of([&] { train(mine, rank); }), "update must not communicate but in this step");
  });
}

// Rank 1 misses the others' update, and its own optimizer refuses the gradients.
TEST(ShardedTrainingMulti, AnErrorOfTheOptimizerInAMissedUpdateReachesAllRanks) {
  run_processes(3, [](int rank) {
    Program mine{.micro_batches = 3, .adam = true, .copies = 2};
    mine.before_update = [&](std::int64_t step) {
      if (rank == 1 && step == 4) break_at(c10d::HookOpName::BARRIER, /*is_sent=*/true);
    };
    mine.in_update = [&](std::int64_t step) {
      if (rank != 1 || step != 4) return;
      for (const torch::Tensor& one : mine.net->parameters()) one.mutable_grad() = one.grad().to_sparse();
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    expect_in(text_of([&] { train(mine, rank); }), "sparse gradients");
  });
}

#endif

}  // namespace
}  // namespace lockstep::test
