// Processes that take the places of dead ranks: the weights are bitwise those of a training without a death.
#include <filesystem>
#include <fstream>
#include <random>

#include "elastic/program.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;

struct Plan {
  int world = 3;
  int newcomers = 1;
  std::vector<Death> deaths = {};  // processes `world` and later are the newcomers
  milliseconds newcomer_timeout = std::chrono::seconds(30);
  bool with_batch_norm = false;
  bool adam = false;
  std::int64_t comes_at = 0;  // the newcomers come when this step has begun; not 0: the order of sums is another
};

Program program_of(const Plan& plan) {
  return {.micro_batches = plan.world,
          .with_batch_norm = plan.with_batch_norm,
          .adam = plan.adam,
          .deaths = plan.deaths,
          .newcomer_timeout = plan.newcomer_timeout};
}

torch::Tensor everything(const Program& program) {
  std::vector<torch::Tensor> all{program.weights()};
  for (const torch::Tensor& buffer : program.net->buffers()) all.push_back(buffer.reshape(-1).to(torch::kDouble));
  return torch::cat(all);
}

InitOptions world_of_one() {
  return {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
}

void train_with_newcomers(const Plan& plan) {
  const SharedScratchFolder folder;
  run_processes(plan.world, [&](int rank) {
    Program quiet = program_of(plan);
    quiet.deaths.clear();
    const ProcessGroupGuard guard("", kElasticWorld);
    train(quiet, rank);
    if (rank == 0) torch::save(everything(quiet), folder.path("quiet"));
  });
  run_processes(plan.world + plan.newcomers, [&](int number) {
    run_mortal([&] {
      const bool is_newcomer = number >= plan.world;
      Program mine = program_of(plan);
      mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
      InitOptions options = kElasticWorld;
      options.init_method = "file://" + folder.path("store");
      options.rank = number;
      options.world_size = plan.world;
      mine.before_update = [&](std::int64_t step) {
        if (step != plan.comes_at || step == 0) return;
        std::ofstream(folder.path("come"));
        EXPECT_TRUE(wait_for([&] { return mine.newcomers->add("elastic/newcomers", 0).value() > 0; }));
      };
      if (is_newcomer && plan.comes_at > 0) {
        EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("come")); }));
      }
      const ProcessGroupGuard guard("", is_newcomer ? world_of_one() : options);
      if (train(mine, number, is_newcomer) < 0) return;
      torch::Tensor quiet;
      torch::load(quiet, folder.path("quiet"));
      const torch::Tensor now = everything(mine);
      for (const torch::Tensor& other : all_gather_object(now)) EXPECT_TRUE(torch::equal(now, other));
      EXPECT_EQ(get_world_size(), plan.world);
      if (plan.comes_at == 0) {
        EXPECT_TRUE(torch::equal(now, quiet)) << (now - quiet).abs().max().item<double>();
      } else {
        EXPECT_TRUE(torch::allclose(now, quiet, 1e-9, 1e-11));
      }
    });
  });
}

class NewcomerPlacesFault : public testing::TestWithParam<Place> {};

TEST_P(NewcomerPlacesFault, OneOfThreeDiesAndIsReplaced) {
  for (const int victim : {0, 2}) {
    train_with_newcomers({.deaths = {{victim, 4, GetParam()}}, .with_batch_norm = victim == 0, .adam = victim == 2});
  }
}
INSTANTIATE_TEST_SUITE_P(All, NewcomerPlacesFault,
                         testing::Values(Place::kForward, Place::kBackward, Place::kAfterBackward, Place::kUpdate,
                                         Place::kAfterStep));

TEST(NewcomersFault, AllRanksAreReplacedOneAfterAnother) {
  train_with_newcomers({.world = 2,
                        .newcomers = 3,
                        .deaths = {{0, 2, Place::kBackward}, {1, 5, Place::kForward}, {2, 8, Place::kAfterBackward}},
                        .with_batch_norm = true});
}

// The first newcomer dies after it has met the others.
TEST(NewcomersFault, ANewcomerDiesInTheRecovery) {
  train_with_newcomers({.newcomers = 2, .deaths = {{1, 4, Place::kBackward}, {3, 0, Place::kRebuild}}});
}

TEST(NewcomersFault, AtRandomPlaces) {
  for (int world = 2; world <= 5; ++world) {
    std::mt19937 random(static_cast<unsigned>(world) + 10);
    std::vector<Death> deaths;
    for (int number = 1; number < world; ++number) {
      deaths.push_back({number, static_cast<std::int64_t>(random() % 12), static_cast<Place>(random() % kPlaces)});
    }
    train_with_newcomers(
        {.world = world, .newcomers = world, .deaths = deaths, .with_batch_norm = world % 2 == 0, .adam = world == 3});
  }
}

// Steps are made by fewer ranks, until the newcomer has joined at the end of one.
TEST(NewcomersFault, JoinsAtTheEndOfALaterStep) {
  train_with_newcomers({.deaths = {{0, 2, Place::kForward}}, .newcomer_timeout = milliseconds(0), .comes_at = 6});
}

TEST(NewcomersMulti, AreNotNeeded) {
  train_with_newcomers({.newcomers = 2});
}

}  // namespace
}  // namespace lockstep::test
