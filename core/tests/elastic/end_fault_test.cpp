// Deaths at the end of a training: every rank ends, and the processes that wait to join learn that it is over.
#include <filesystem>
#include <fstream>

#include "elastic/program.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/elastic/micro_batch_loader.h"
#include "lockstep/store/file_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class ElasticEndFault : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ElasticEndFault, testing::Values(2, 3, 4));

struct DeathAtTheEnd {
  int world = 3;
  int newcomers = 1;
  int victim = 0;
  std::int64_t first_run = 0;
  int min_ranks = 1;
};

// The victim dies at the end of the first run(), when no rank is in after_step any more. `expect`: told how often the
// world was formed anew.
void die_at_the_end(const DeathAtTheEnd& plan, const SharedScratchFolder& folder,
                    const std::function<void(const Program& mine, bool is_newcomer, int recoveries)>& expect) {
  run_processes(plan.world + plan.newcomers, [&](int number) {
    run_mortal([&] {
      const bool is_newcomer = number >= plan.world;
      Program mine{.steps = 3 + plan.first_run,
                   .first_run = plan.first_run,
                   .min_ranks = plan.min_ranks,
                   .newcomer_timeout = std::chrono::minutes(10)};
      mine.at_end = [&] {
        std::ofstream(folder.path("end." + std::to_string(number)));
        for (int rank = 0; number == plan.victim && rank < plan.world; ++rank) {
          const std::string file = folder.path("end." + std::to_string(rank));
          EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(file); }));
        }
        if (number == plan.victim) raise(SIGKILL);
      };
      mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
      const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, plan.world, is_newcomer));
      const int recoveries = train(mine, number, is_newcomer);
      expect(mine, is_newcomer, recoveries);
    });
  });
}

// No step is left, so nobody waits 10 minutes for a newcomer, and those that are there are not needed.
TEST_P(ElasticEndFault, AfterTheLastStepNobodyIsReplaced) {
  const int world = GetParam();
  for (const int newcomers : {0, 2}) {
    for (const int victim : {0, world - 1}) {
      const SharedScratchFolder folder;
      die_at_the_end({world, newcomers, victim}, folder,
                     [world](const Program& mine, bool is_newcomer, int recoveries) {
                       EXPECT_EQ(recoveries < 0, is_newcomer);
                       if (recoveries >= 0) expect_weights(mine, world - 1);
                     });
    }
  }
}

// Fewer ranks than `min_ranks` live until the newcomer has come.
TEST_P(ElasticEndFault, ANewcomerTakesThePlaceBeforeTheNextRun) {
  const int world = GetParam();
  for (const int victim : {0, world - 1}) {
    const SharedScratchFolder folder;
    run_processes(world, [&](int rank) {
      const ProcessGroupGuard guard("", kElasticWorld);
      Program quiet{.steps = 6, .first_run = 3};
      train(quiet, rank);
      if (rank == 0) torch::save(quiet.weights(), folder.path("quiet"));
    });
    const DeathAtTheEnd plan{.world = world, .victim = victim, .first_run = 3, .min_ranks = world};
    die_at_the_end(plan, folder, [&](const Program& mine, bool, int recoveries) {
      EXPECT_GE(recoveries, 0);
      expect_weights(mine, world);
      torch::Tensor quiet;
      torch::load(quiet, folder.path("quiet"));
      EXPECT_TRUE(torch::equal(mine.weights(), quiet));
    });
  }
}

// What a rank trains with.
struct RunningRank {
  ElasticTraining& training;
  const ElasticFunctions& functions;
  torch::nn::Linear& net;
  MicroBatchLoader<data::Example>& loader;
};

// Computes this rank's micro-batches of a step: the ranks take each sample once.
void take_samples(const ElasticStep& step, MicroBatchLoader<data::Example>& loader, int world) {
  const torch::Tensor taken = torch::zeros({8 * world});
  for (int part = 0; part < step.parts(); ++part) {
    const MicroBatch micro_batch = step.begin(part);
    EXPECT_EQ(micro_batch.count, world);
    taken[static_cast<std::int64_t>(loader.next(micro_batch).data.item<float>())] += 1;
  }
  all_reduce(taken);
  EXPECT_EQ(taken.sum().item<float>(), static_cast<float>(world));
  EXPECT_EQ(taken.max().item<float>(), 1.0F);
}

// Rank 0 sees the end of a run, the last rank dies in it, and the others learn of the death before they have seen the
// end. `begin_next` makes the next run.
void miss_the_end(int world,
                  const std::function<void(const RunningRank& mine, const SharedScratchFolder& folder)>& begin_next) {
  const SharedScratchFolder folder;
  run_processes(world, [&](int rank) {
    run_mortal([&] {
      const ProcessGroupGuard guard("", kElasticWorld);
      const torch::Tensor numbers = torch::arange(8 * world, torch::kFloat).reshape({-1, 1});
      MicroBatchLoader loader(data::TensorDataset(numbers, numbers), {.batch_size = 1});
      torch::nn::Linear net(1, 1);
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(0);
      }
      bool misses = rank != 0;
      ElasticTraining training({.seed = 1});
      training.add_model(*net);
      training.add_loader(loader);
      const ElasticFunctions functions{.gradients = [&](ElasticStep& step) { take_samples(step, loader, world); },
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
      begin_next({training, functions, net, loader}, folder);
      EXPECT_EQ(get_world_size(), world - 1);
      for (const torch::Tensor& other : all_gather_object(net->weight.detach())) EXPECT_EQ(other.item<float>(), 8.0F);
    });
  });
}

TEST(ElasticRunsFault, ARankThatMissesTheEndGoesOnWithTheNextRun) {
  for (const int world : {3, 4}) {
    miss_the_end(world, [](const RunningRank& mine, const SharedScratchFolder&) {
      mine.training.run(8, mine.functions);
      EXPECT_EQ(mine.training.steps_done(), 8);
    });
  }
}

TEST(ElasticRunsFault, ARankThatMissesTheEndGoesOnWithTheNextTraining) {
  for (const bool with_newcomers : {false, true}) {  // none comes
    for (const int world : {3, 4}) {
      miss_the_end(world, [&](const RunningRank& mine, const SharedScratchFolder& folder) {
        ElasticOptions options{.seed = 1};
        if (with_newcomers) options.newcomers = comm::FileStore::open(folder.path("waiting")).value();
        ElasticTraining next(options);
        next.add_model(*mine.net);
        next.add_loader(mine.loader);
        next.run(4, mine.functions);
        EXPECT_EQ(next.steps_done(), 4);
      });
    }
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
    const ProcessGroupGuard guard("", world_of_one());
    EXPECT_EQ(train(mine, number, /*is_newcomer=*/true), -1);
  });
}

}  // namespace
}  // namespace lockstep::test
