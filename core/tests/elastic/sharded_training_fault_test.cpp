// A sharded optimizer under ElasticTraining: ranks die at every place of a step, and the others have, bit for bit, the
// weights of the plain optimizer.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "elastic/program.h"
#include "lockstep/store/file_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// In the optimizer's step: before its first all-gather, before its second, and when all values are there.
enum class InStep { kNo, kBeforeExchange, kInExchange, kAfterExchange };

struct ShardedDeath {
  Death death;
  InStep in_step = InStep::kNo;
};

struct ShardedPlan {
  int world = 3;
  int newcomers = 0;
  int copies = 2;
  bool adam = false;
  bool at_once = false;  // whoever is to die waits until all are at their places
  std::vector<ShardedDeath> deaths = {};
};

constexpr std::int64_t kSteps = 8;

// Kills this process when the optimizer's step comes to this place. The hook is in the present world alone.
void die_in_step(InStep place, const std::function<void(const std::string&)>& tell) {
#ifdef C10D_BACKEND_HAS_HOOKS
  auto gathers = std::make_shared<int>(0);
  default_group()->registerPreHook(7, [=](const c10d::PreHookArgs& args) {
    const bool is_gather = args.name == c10d::HookOpName::ALLGATHER;
    if (is_gather) ++*gathers;
    if ((place == InStep::kBeforeExchange && is_gather) || (place == InStep::kInExchange && *gathers == 2) ||
        (place == InStep::kAfterExchange && args.name == c10d::HookOpName::BARRIER)) {
      tell("died");
      raise(SIGKILL);
    }
  });
#else
  static_cast<void>(place);
  tell("died");
  raise(SIGKILL);
#endif
}

// Tells `tell` of each death.
Program program_of(
    const ShardedPlan& plan, int number, std::function<void(const std::string&)> tell = [](const std::string&) {}) {
  Program program{.micro_batches = plan.world, .steps = kSteps, .adam = plan.adam, .copies = plan.copies};
  for (const ShardedDeath& one : plan.deaths) {
    if (one.in_step == InStep::kNo) {
      program.deaths.push_back(one.death);
    } else if (one.death.number == number) {
      program.in_update = [one, tell](std::int64_t step) {
        if (step == one.death.step) die_in_step(one.in_step, tell);
      };
    }
  }
  program.tell = std::move(tell);
  return program;
}

// The weights of a plain optimizer whose ranks die in the forward pass.
torch::Tensor plain_weights(const ShardedPlan& plan) {
  const SharedScratchFolder folder;
  run_processes(plan.world, [&](int rank) {
    run_mortal([&] {
      Program mine = program_of(plan, rank);
      mine.copies = 0;
      const ProcessGroupGuard guard("", kElasticWorld);
      train(mine, rank);
      if (get_rank() == 0) torch::save(mine.weights(), folder.path("weights"));
    });
  });
  torch::Tensor weights;
  torch::load(weights, folder.path("weights"));
  return weights;
}

// A step in which a rank dies is that of all ranks, or of those that are left: so the deaths are each in this step's
// forward pass or in the next one's.
std::vector<torch::Tensor> possible_weights(const ShardedPlan& plan) {
  std::vector<torch::Tensor> possible;
  if (plan.newcomers > 0) {
    ShardedPlan quiet = plan;
    quiet.deaths.clear();
    return {plain_weights(quiet)};
  }
  for (unsigned choice = 0; choice < 1U << plan.deaths.size(); ++choice) {
    ShardedPlan one = plan;
    for (std::size_t i = 0; i < one.deaths.size(); ++i) {
      const Death& death = one.deaths[i].death;
      one.deaths[i] = {{death.number, death.step + ((choice >> i) & 1U), Place::kForward}};
    }
    possible.push_back(plain_weights(one));
  }
  return possible;
}

// Runs `check` on each process that is left. Processes from `world` on are newcomers.
void run_sharded(const ShardedPlan& plan, const std::function<void(Program& program, int number)>& check) {
  const SharedScratchFolder folder;
  run_processes(plan.world + plan.newcomers, [&](int number) {
    run_mortal([&] {
      const bool is_newcomer = number >= plan.world;
      const auto died = [&](int who) { return folder.path("died." + std::to_string(who)); };
      Program mine = program_of(plan, number, [&](const std::string& what) {
        if (what != "died") return;
        std::ofstream(died(number)).close();
        if (!plan.at_once) return;
        for (const ShardedDeath& other : plan.deaths)
          EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(died(other.death.number)); }));
      });
      if (plan.newcomers > 0) mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
      mine.newcomer_timeout = std::chrono::seconds(plan.newcomers > 0 ? 30 : 0);
      if (is_newcomer) {  // they are asked in the order in which they have come
        EXPECT_TRUE(
            wait_for([&] { return mine.newcomers->add("elastic/newcomers", 0).value() >= number - plan.world; }));
      }
      const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, plan.world, is_newcomer));
      check(mine, number);
    });
  });
  for (const ShardedDeath& one : plan.deaths) {
    EXPECT_TRUE(std::filesystem::exists(folder.path("died." + std::to_string(one.death.number)))) << one.death.number;
  }
}

void train_sharded(const ShardedPlan& plan) {
  const std::vector<torch::Tensor> possible = possible_weights(plan);
  run_sharded(plan, [&](Program& mine, int number) {
    if (train(mine, number, number >= plan.world) < 0) return;
    const torch::Tensor now = mine.weights();
    for (const torch::Tensor& other : all_gather_object(now)) EXPECT_TRUE(torch::equal(now, other));
    EXPECT_EQ(get_world_size(), plan.world + plan.newcomers - static_cast<int>(plan.deaths.size()));
    EXPECT_TRUE(std::any_of(possible.begin(), possible.end(), [&](const torch::Tensor& one) {
      return torch::equal(one, now);
    })) << (possible[0] - now).abs().max().item<double>();
    // The state is divided among the ranks of the last world, and saved from there.
    auto& optimizer = dynamic_cast<ShardedOptimizer&>(*mine.optimizer);
    std::vector<std::size_t> states;
    for (const auto& one : all_gather_object(optimizer.local_optimizer().state().size())) states.push_back(one);
    const auto copies = static_cast<std::size_t>(std::min(plan.copies, get_world_size()));
    EXPECT_EQ(std::accumulate(states.begin(), states.end(), std::size_t{0}), copies * mine.net->parameters().size());
    optimizer.consolidate_state_dict(0);
    if (get_rank() == 0) {
      EXPECT_EQ(optimizer.consolidated().state().size(), mine.net->parameters().size());
    }
  });
}

// The places of a step.
const std::vector<ShardedDeath> kShardedPlaces{{{0, 0, Place::kForward}},       {{0, 0, Place::kBackward}},
                                               {{0, 0, Place::kAfterBackward}}, {{0, 0, Place::kUpdate}},
                                               {{}, InStep::kBeforeExchange},   {{}, InStep::kInExchange},
                                               {{}, InStep::kAfterExchange},    {{0, 0, Place::kAfterStep}}};

ShardedDeath at(std::size_t place, int number, std::int64_t step) {
  ShardedDeath one = kShardedPlaces.at(place);
  one.death.number = number;
  one.death.step = step;
  return one;
}

class ShardedTrainingFault : public testing::TestWithParam<int> {};

TEST_P(ShardedTrainingFault, OneRankDies) {
  const auto place = static_cast<std::size_t>(GetParam());
  for (int world = 2; world <= 5; ++world) {
    SCOPED_TRACE(world);
    train_sharded({.world = world, .adam = world % 2 == 0, .deaths = {at(place, (GetParam() + world) % world, 3)}});
  }
}

TEST_P(ShardedTrainingFault, OneRankDiesAndIsReplaced) {
  const auto place = static_cast<std::size_t>(GetParam());
  for (int world = 2; world <= 4; ++world) {
    SCOPED_TRACE(world);
    train_sharded(
        {.world = world, .newcomers = 1, .adam = world % 2 == 1, .deaths = {at(place, GetParam() % world, 3)}});
  }
}

// Ranks 0 and 2 have no share in common.
TEST_P(ShardedTrainingFault, TwoThatAreNoNeighboursDie) {
  const auto place = static_cast<std::size_t>(GetParam());
  train_sharded({.world = 4, .adam = true, .at_once = true, .deaths = {at(place, 0, 3), at(place, 2, 3)}});
  // After a death in update the hook of a death in the exchange would be in the former world.
  const std::size_t other = place == 3 ? 7 : (place + 3) % kShardedPlaces.size();
  train_sharded({.world = 5, .newcomers = 2, .deaths = {at(place, 1, 3), at(other, 3, 3)}});
}

TEST_P(ShardedTrainingFault, NeighboursDieWithACopyMore) {
  const auto place = static_cast<std::size_t>(GetParam());
  train_sharded({.world = 4, .copies = 3, .adam = true, .at_once = true, .deaths = {at(place, 1, 3), at(place, 2, 3)}});
}

// Rank 2 has the only copy of rank 1's state.
TEST_P(ShardedTrainingFault, NeighboursThatDieAtOnceAreAnErrorOnAllRanks) {
  const auto place = static_cast<std::size_t>(GetParam());
  const ShardedPlan plan{.world = 4, .at_once = true, .deaths = {at(place, 1, 3), at(place, 2, 3)}};
  run_sharded(plan, [&](Program& mine, int number) {
    try {
      train(mine, number);
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_EQ(error_code(error), ErrorCode::kPeerFailed);
      EXPECT_NE(std::string(error.what()).find("all ranks that had the state of"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("copies"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Places, ShardedTrainingFault, testing::Range(0, static_cast<int>(kShardedPlaces.size())));

TEST(ShardedTrainingOthersFault, InTheFirstStepAndAfterTheLast) {
  for (std::size_t place = 0; place < kShardedPlaces.size(); ++place) {
    train_sharded({.deaths = {at(place, 1, 0)}});
    train_sharded({.adam = true, .deaths = {at(place, 0, kSteps - 1)}});
  }
}

TEST(ShardedTrainingOthersFault, OneAfterAnotherUntilOneIsLeft) {
  train_sharded({.world = 4, .deaths = {at(5, 0, 1), at(3, 3, 3), at(6, 1, 5)}});
}

TEST(ShardedTrainingOthersFault, AllRanksAreReplacedOneAfterAnother) {
  train_sharded({.world = 2, .newcomers = 3, .adam = true, .deaths = {at(5, 0, 1), at(1, 1, 3), at(6, 2, 5)}});
}

// All but one process of the start, at random moments: so each rank needs all state. LOCKSTEP_TEST_SOAK says how many
// plans for each world.
TEST(ShardedTrainingOthersFault, AtRandomMoments) {
  for (unsigned plan = 0; plan < random_plans(); ++plan) {
    for (int world = 2; world <= 4; ++world) {
      SCOPED_TRACE(testing::Message() << "plan " << plan << " of world " << world);
      std::mt19937 random(plan * 10 + static_cast<unsigned>(world));
      std::vector<ShardedDeath> deaths;
      for (int number = 1; number < world; ++number) {
        deaths.push_back({random_death(number, random)});
        deaths.back().death.step %= kSteps - 1;
      }
      train_sharded({.world = world, .newcomers = world - 1, .copies = world, .adam = world == 3, .deaths = deaths});
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
