// Deaths at the end of a training: every rank ends, and the processes that wait to join learn that it is over.
#include <filesystem>
#include <fstream>

#include "elastic/program.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class ElasticEndFault : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ElasticEndFault, testing::Values(2, 3, 4));

// No step is left, so nobody waits 10 minutes for a newcomer, and those that are there are not needed.
TEST_P(ElasticEndFault, AfterTheLastStepNobodyIsReplaced) {
  const int world = GetParam();
  for (const int newcomers : {0, 2}) {
    for (const int victim : {0, world - 1}) {
      const SharedScratchFolder folder;
      run_processes(world + newcomers, [&](int number) {
        run_mortal([&] {
          const bool is_newcomer = number >= world;
          Program mine{.steps = 3, .newcomer_timeout = std::chrono::minutes(10)};
          mine.at_end = [&] {  // the victim dies when no rank is in after_step any more
            std::ofstream(folder.path("end." + std::to_string(number)));
            for (int rank = 0; number == victim && rank < world; ++rank) {
              const std::string file = folder.path("end." + std::to_string(rank));
              EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(file); }));
            }
            if (number == victim) raise(SIGKILL);
          };
          mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
          InitOptions options = kElasticWorld;
          options.init_method = "file://" + folder.path("store");
          options.rank = number;
          options.world_size = world;
          if (is_newcomer) options = {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
          const ProcessGroupGuard guard("", options);
          const int recoveries = train(mine, number, is_newcomer);
          EXPECT_EQ(recoveries < 0, is_newcomer);
          if (recoveries >= 0) expect_weights(mine, world - 1);
        });
      });
    }
  }
}

// Rank 0 sees the end of a run, the last rank dies in it, and the others learn of the death before they have seen the
// end. `begin_next` makes the next run.
void miss_the_end(int world, const std::function<void(ElasticTraining& training, const ElasticFunctions& functions,
                                                      torch::nn::Linear& net)>& begin_next) {
  const SharedScratchFolder folder;
  run_processes(world, [&](int rank) {
    run_mortal([&] {
      const ProcessGroupGuard guard("", kElasticWorld);
      torch::nn::Linear net(1, 1);
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(0);
      }
      bool misses = rank != 0;
      ElasticTraining training({.seed = 1});
      training.add_model(*net);
      const ElasticFunctions functions{.gradients = [](ElasticStep&) { all_reduce(torch::ones({1})); },
                                       .update =
                                           [&](std::int64_t) {
                                             const torch::NoGradGuard no_grad;
                                             net->weight += 1;
                                           },
                                       .after_step =
                                           [&](std::int64_t done) {
                                             if (done != 4 || !std::exchange(misses, false)) return;
                                             barrier();  // the one at the end of run()
                                             const bool dies = rank == world - 1;
                                             const std::string awaited = folder.path(dies ? "over" : "dead");
                                             EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(awaited); }));
                                             if (dies) std::ofstream(folder.path("dead"));
                                             if (dies) raise(SIGKILL);
                                             throw BackendError(ErrorCode::kPeerFailed, "a test");
                                           }};
      training.run(4, functions);
      if (rank == 0) std::ofstream(folder.path("over"));
      begin_next(training, functions, net);
      EXPECT_EQ(get_world_size(), world - 1);
      for (const torch::Tensor& other : all_gather_object(net->weight.detach())) EXPECT_EQ(other.item<float>(), 8.0F);
    });
  });
}

TEST(ElasticRunsFault, ARankThatMissesTheEndGoesOnWithTheNextRun) {
  for (const int world : {3, 4}) {
    miss_the_end(world, [](ElasticTraining& training, const ElasticFunctions& functions, torch::nn::Linear&) {
      training.run(8, functions);
      EXPECT_EQ(training.steps_done(), 8);
    });
  }
}

TEST(ElasticRunsFault, ARankThatMissesTheEndGoesOnWithTheNextTraining) {
  for (const int world : {3, 4}) {
    miss_the_end(world, [](ElasticTraining&, const ElasticFunctions& functions, torch::nn::Linear& net) {
      ElasticTraining next({.seed = 1});
      next.add_model(*net);
      next.run(4, functions);
      EXPECT_EQ(next.steps_done(), 4);
    });
  }
}

// Rank 0 closes the store of the newcomers, and dies before it has told the one that waits.
TEST(ElasticEndMulti, ANewcomerLearnsThatItIsOverAlthoughNobodyTellsIt) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int number) {
    const auto store = comm::FileStore::open(folder.path("waiting")).value();
    if (number == 0) {
      EXPECT_TRUE(wait_for([&] { return store->check(std::array{std::string("elastic/handle/1")}).value(); }));
      EXPECT_TRUE(store->set("elastic/over", "1").ok());
      return;
    }
    Program mine{.newcomers = store};
    const ProcessGroupGuard guard("", {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()});
    EXPECT_EQ(train(mine, number, /*is_newcomer=*/true), -1);
  });
}

}  // namespace
}  // namespace lockstep::test
