// Ranks that die at chosen places of a step: the others go on, with the weights of a training without a death.
#include <algorithm>
#include <stdexcept>

#include "elastic/program.h"
#include "lockstep/nn/shared_step.h"

namespace lockstep::test {
namespace {

class ElasticTrainingPlacesFault : public testing::TestWithParam<Place> {};

// With the rank that serves the store, and with another.
TEST_P(ElasticTrainingPlacesFault, OneOfThreeDies) {
  for (const int victim : {0, 1}) {
    train_and_die(3, {.micro_batches = 4, .steps = 9, .deaths = {{victim, 4, GetParam()}}});
  }
}
INSTANTIATE_TEST_SUITE_P(All, ElasticTrainingPlacesFault,
                         testing::Values(Place::kForward, Place::kBackward, Place::kAfterBackward, Place::kUpdate,
                                         Place::kAfterStep));

TEST(ElasticTrainingFault, InTheFirstStepAndAfterTheLast) {
  train_and_die(3, {.micro_batches = 3, .deaths = {{1, 0, Place::kForward}}});
  train_and_die(3, {.micro_batches = 3, .deaths = {{0, 11, Place::kAfterStep}}});
}

TEST(ElasticTrainingFault, TwoAtOnce) {
  train_and_die(4, {.micro_batches = 8, .deaths = {{0, 5, Place::kBackward}, {2, 5, Place::kForward}}});
}

TEST(ElasticTrainingFault, InTheRecoveryFromAnEarlierDeath) {
  train_and_die(4, {.deaths = {{1, 3, Place::kBackward}, {0, 0, Place::kRebuild}}});
}

TEST(ElasticTrainingFault, OneAfterAnotherUntilOneIsLeft) {
  train_and_die(4, {.deaths = {{0, 2, Place::kForward}, {3, 5, Place::kUpdate}, {1, 8, Place::kAfterBackward}}});
}

TEST(ElasticTrainingFault, WithBatchNormAndAdam) {
  train_and_die(3, {.micro_batches = 3, .with_batch_norm = true, .deaths = {{0, 4, Place::kBackward}}});
  train_and_die(3, {.micro_batches = 3, .adam = true, .deaths = {{2, 4, Place::kAfterBackward}}});
}

// Rank 1 learns of the death before its update, and rank 2 after it has done the step: rank 1 gets the step from it.
TEST(ElasticTrainingFault, ARankThatIsBehindGetsTheStateOfOneThatIsNot) {
  for (const bool adam : {false, true}) {
    run_processes(3, [adam](int rank) {
      run_mortal([&] {
        Program mine{.micro_batches = 4, .adam = adam, .deaths = {{0, 4, Place::kAfterBackward}}};
        mine.before_update = [rank](std::int64_t step) {
          static bool once = false;
          if (rank == 1 && step == 4 && !std::exchange(once, true))
            throw BackendError(ErrorCode::kPeerFailed, "a test");
        };
        const ProcessGroupGuard guard("", kElasticWorld);
        EXPECT_EQ(train(mine, rank), 1);
        expect_weights(mine, 2);
      });
    });
  }
}

TEST(ElasticTrainingMulti, ABreakWithoutADeathIsMendedOnceInAStep) {
  run_processes(2, [](int rank) {
    Program mine{.micro_batches = 2};
    int breaks = 0;
    mine.before_update = [&](std::int64_t step) {
      const bool breaks_now = (step == 2 && breaks == 0) || step == 5;
      // SGD changes what data() returns: rank 0 needs the parameters of rank 1.
      if (breaks_now && step == 2 && rank == 0) mine.optimizer->step();
      if (step == 4) {
        for (const torch::Tensor& other : all_gather_object(mine.weights()))
          EXPECT_TRUE(torch::equal(other, mine.weights()));
      }
      if (breaks_now && breaks++ < 3) throw BackendError(ErrorCode::kPeerFailed, "a test");
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    try {
      train(mine, rank);
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_EQ(error_code(error), ErrorCode::kPeerFailed) << error.what();
    }
    EXPECT_EQ(mine.own_count, 5);
  });
}

TEST(ElasticTrainingMulti, OtherExceptionsLeaveAsTheyAre) {
  run_processes(2, [](int rank) {
    Program mine{.micro_batches = 2};
    mine.before_update = [](std::int64_t step) {
      if (step == 3) throw std::out_of_range("of the program");
    };
    const ProcessGroupGuard guard("", kElasticWorld);
    EXPECT_THROW(train(mine, rank), std::out_of_range);
    EXPECT_EQ(mine.own_count, 3);
  });
}

// Rank 1 fails before the update of step 3, and rank 0 after it. With a seed `update` draws the same on both.
TEST(ElasticTrainingMulti, ASecondRunBeginsWithTheSameStateOnAllRanks) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard guard("", kElasticWorld);
    torch::nn::Linear net(2, 2);
    bool fails = true;
    ElasticTraining training({.seed = 1});
    training.add_model(*net);
    const ElasticFunctions functions{.gradients =
                                         [&](ElasticStep& step) {
                                           torch::rand({1 + rank});
                                           if (rank == 1 && step.number() == 3 && std::exchange(fails, false))
                                             throw std::out_of_range("of the program");
                                         },
                                     .update =
                                         [&](std::int64_t) {
                                           const torch::NoGradGuard no_grad;
                                           net->weight += torch::rand({2, 2});
                                         },
                                     .after_step =
                                         [&](std::int64_t done) {
                                           if (rank == 0 && done == 4 && std::exchange(fails, false))
                                             throw std::out_of_range("of the program");
                                         }};
    broadcast(net->weight.detach(), 0);
    EXPECT_THROW(training.run(6, functions), std::out_of_range);
    EXPECT_EQ(training.steps_done(), rank == 0 ? 4 : 3);
    training.run(6, functions);
    EXPECT_EQ(training.steps_done(), 6);
    for (const torch::Tensor& other : all_gather_object(net->weight.detach()))
      EXPECT_TRUE(torch::equal(net->weight.detach(), other));

    SharedStep<torch::optim::SGD> shared(net->parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_THROW(training.add_optimizer(shared), ArgumentError);
    ElasticTraining later({.first_step = rank});
    later.add_model(*net);
    EXPECT_THROW(later.run(6, functions), ArgumentError);
  });
}

TEST(ElasticTrainingFault, FewerThanTheMinimum) {
  run_processes(3, [](int rank) {
    run_mortal([&] {
      Program mine{.min_ranks = 3, .deaths = {{0, 2, Place::kForward}}};
      const ProcessGroupGuard guard("", kElasticWorld);
      try {
        train(mine, rank);
        ADD_FAILURE() << "no error";
      } catch (const std::exception& error) {
        EXPECT_EQ(error_code(error), ErrorCode::kPeerFailed);
        EXPECT_NE(std::string(error.what()).find("2 rank(s) are left after 2 steps, and min_ranks is 3"),
                  std::string::npos)
            << error.what();
      }
    });
  });
}

// Nobody has whole parameters then.
TEST(ElasticTrainingFault, AnUpdateThatCommunicatesIsAnErrorOnAllRanks) {
  run_processes(3, [](int rank) {
    run_mortal([&] {
      Program mine{};
      mine.in_update = [rank](std::int64_t step) {
        if (rank == 1 && step == 2) raise(SIGKILL);
        const torch::Tensor sum = torch::ones({1});
        all_reduce(sum);
      };
      const ProcessGroupGuard guard("", kElasticWorld);
      try {
        train(mine, rank);
        ADD_FAILURE() << "no error";
      } catch (const std::exception& error) {
        EXPECT_EQ(error_code(error), ErrorCode::kUnsupported);
        EXPECT_NE(std::string(error.what()).find("update must not communicate"), std::string::npos) << error.what();
      }
    });
  });
}

}  // namespace
}  // namespace lockstep::test
