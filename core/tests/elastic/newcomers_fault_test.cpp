// Processes that take the places of dead ranks: the weights are bitwise those of a training without a death.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "elastic/program.h"
#include "lockstep/c10d/reconfigure.h"
#include "lockstep/store/file_store.h"
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
      mine.tell = [&](const std::string& what) {
        if (what == "died") std::ofstream(folder.path("died." + std::to_string(number)));
      };
      mine.before_update = [&](std::int64_t step) {
        if (step != plan.comes_at || step == 0) return;
        std::ofstream(folder.path("come"));
        EXPECT_TRUE(wait_for([&] { return mine.newcomers->add("elastic/newcomers", 0).value() > 0; }));
      };
      if (is_newcomer) {  // they are asked in the order in which they have come
        EXPECT_TRUE(
            wait_for([&] { return mine.newcomers->add("elastic/newcomers", 0).value() >= number - plan.world; }));
      }
      if (is_newcomer && plan.comes_at > 0) {
        EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("come")); }));
      }
      const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, plan.world, is_newcomer));
      if (train(mine, number, is_newcomer) < 0) return;
      torch::Tensor quiet;
      torch::load(quiet, folder.path("quiet"));
      const torch::Tensor now = everything(mine);
      for (const torch::Tensor& other : all_gather_object(now)) EXPECT_TRUE(torch::equal(now, other));
      const auto deaths = static_cast<int>(plan.deaths.size());
      EXPECT_EQ(get_world_size(), plan.world - std::max(deaths - plan.newcomers, 0));
      if (plan.comes_at == 0) {
        EXPECT_TRUE(torch::equal(now, quiet)) << (now - quiet).abs().max().item<double>();
      } else {
        EXPECT_TRUE(torch::allclose(now, quiet, 1e-9, 1e-11));
      }
    });
  });
  for (const Death& death : plan.deaths)
    EXPECT_TRUE(std::filesystem::exists(folder.path("died." + std::to_string(death.number)))) << death.number;
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

// The newcomer itself, or rank 0, which sends it the state.
TEST(NewcomersFault, ADeathWhileANewcomerTakesTheState) {
  train_with_newcomers({.newcomers = 2, .deaths = {{1, 4, Place::kBackward}, {3, 0, Place::kTakes}}});
  train_with_newcomers({.newcomers = 2, .deaths = {{1, 4, Place::kBackward}, {0, 0, Place::kSends}}, .adam = true});
}

// As many deaths as newcomers, of any process. LOCKSTEP_TEST_SOAK says how many plans for each world.
TEST(NewcomersFault, AtRandomPlaces) {
  for (unsigned plan = 0; plan < random_plans(); ++plan) {
    for (int world = 2; world <= 5; ++world) {
      SCOPED_TRACE(testing::Message() << "plan " << plan << " of world " << world);
      std::mt19937 random(plan * 10 + static_cast<unsigned>(world));
      std::vector<Death> deaths;
      for (int number = 1; number < world; ++number) deaths.push_back(random_death(number, random));
      train_with_newcomers({.world = world,
                            .newcomers = world,
                            .deaths = deaths,
                            .with_batch_norm = world % 2 == 0,
                            .adam = world == 3});
      if (HasFailure()) return;
    }
  }
}

// Steps are made by fewer ranks, until the newcomer has joined at the end of one.
TEST(NewcomersFault, JoinsAtTheEndOfALaterStep) {
  train_with_newcomers({.deaths = {{0, 2, Place::kForward}}, .newcomer_timeout = milliseconds(0), .comes_at = 6});
}

TEST(NewcomersFault, OneJoinsLaterWhereTwoHaveDied) {
  train_with_newcomers({.world = 4,
                        .deaths = {{0, 2, Place::kForward}, {1, 3, Place::kForward}},
                        .newcomer_timeout = milliseconds(0),
                        .comes_at = 6});
}

// Tells the store of a newcomer with this handle, as join() does.
void register_newcomer(comm::Store& store, const std::string& handle, const std::string& description = "") {
  const std::int64_t number = store.add("elastic/newcomers", 1).value();
  if (!description.empty()) {
    ASSERT_TRUE(store.set("elastic/description/" + std::to_string(number), description).ok());
  }
  ASSERT_TRUE(store.set("elastic/handle/" + std::to_string(number), handle).ok());
}

// What the world of three does after the death of a rank, when `register_first` has told of a first newcomer.
void survive_with(const std::function<void(comm::Store& store)>& register_first, bool has_another) {
  const SharedScratchFolder folder;
  run_processes(4, [&](int number) {
    run_mortal([&] {
      const bool is_newcomer = number == 3;
      if (is_newcomer) {
        run_mortal([&] {
          const ProcessGroupGuard of_the_first("", world_of_one());
          register_first(*comm::FileStore::open(folder.path("waiting")).value());
        });
        std::ofstream(folder.path("come"));
        if (!has_another) return;
      }
      Program mine{.deaths = {{1, 3, Place::kForward}}, .newcomer_timeout = std::chrono::seconds(has_another ? 30 : 0)};
      mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
      mine.before_update = [&](std::int64_t step) {  // the death is in the next one
        EXPECT_TRUE(step != 2 || wait_for([&] { return std::filesystem::exists(folder.path("come")); }));
      };
      const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, 3, is_newcomer));
      train(mine, number, is_newcomer);
      expect_weights(mine, has_another ? 3 : 2);
    });
  });
}

TEST(NewcomersFault, ANewcomerHasDiedBeforeItIsNeeded) {
  survive_with(
      [](comm::Store& store) {
        register_newcomer(store, get_reconfigure_handle());
        raise(SIGKILL);
      },
      /*has_another=*/true);
}

TEST(NewcomersFault, ANewcomerOfAnotherBuildIsRefused) {
  survive_with(
      [](comm::Store& store) {
        std::string handle = get_reconfigure_handle();
        const std::size_t build = handle.find("Lockstep ");
        ASSERT_NE(build, std::string::npos) << handle;
        register_newcomer(store, handle.replace(build, 9, "Lockstep 9"));
      },
      /*has_another=*/false);
}

// Its join() throws, and the next one takes the place.
TEST(NewcomersFault, ANewcomerWithOtherStatesIsRefused) {
  survive_with([](comm::Store& store) { register_newcomer(store, get_reconfigure_handle(), "micro_batches: 5\n"); },
               /*has_another=*/true);
}

// After a death without a newcomer, a group breaks although nobody has died, and then there is one: it dies before it
// meets the others, or after that.
void die_after_a_break(int world, bool has_met) {
  const SharedScratchFolder folder;
  run_processes(world + 1, [&](int number) {
    run_mortal([&] {
      const bool is_newcomer = number == world;
      Program mine{.deaths = {{world - 1, 2, Place::kForward}, {world, 0, Place::kRebuild}}};
      mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
      bool breaks = !is_newcomer;
      mine.before_update = [&](std::int64_t step) {
        if (step != 5 || !std::exchange(breaks, false)) return;
        std::ofstream(folder.path("come"));
        EXPECT_TRUE(
            wait_for([&] { return mine.newcomers->check(std::array{std::string("elastic/handle/1")}).value(); }));
        throw BackendError(ErrorCode::kPeerFailed, "a test");
      };
      if (is_newcomer) {
        EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("come")); }));
      }
      const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, world, is_newcomer));
      if (is_newcomer && !has_met) {
        register_newcomer(*mine.newcomers, get_reconfigure_handle());
        raise(SIGKILL);
      }
      train(mine, number, is_newcomer);
      expect_weights(mine, world - 1);
    });
  });
}

TEST(NewcomersFault, ANewcomerDiesWhenAGroupHasBrokenWithoutADeath) {
  for (int world = 2; world <= 4; ++world) {
    die_after_a_break(world, /*has_met=*/false);
    die_after_a_break(world, /*has_met=*/true);
  }
}

class BrokenStore final : public comm::Store {
  Result<comm::StoreAnswer> answer(comm::StoreCall /*call*/) override {
    return Status(ErrorCode::kUnavailable, "nobody answers");
  }
};

TEST(NewcomersFault, WithoutTheirStoreFewerGoOn) {
  run_processes(3, [](int rank) {
    run_mortal([&] {
      Program mine{.deaths = {{0, 3, Place::kBackward}}, .newcomer_timeout = std::chrono::seconds(30)};
      mine.newcomers = std::make_shared<BrokenStore>();
      const ProcessGroupGuard guard("", kElasticWorld);
      train(mine, rank);
      expect_weights(mine, 2);
    });
  });
}

TEST(NewcomersMulti, AreNotNeeded) {
  train_with_newcomers({.newcomers = 2});
}

}  // namespace
}  // namespace lockstep::test
