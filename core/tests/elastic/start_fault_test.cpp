// Ranks that die while a training begins: all others go on with the state that rank 0 began with, or all get an error.
#include <filesystem>
#include <fstream>

#include "elastic/program.h"
#include "lockstep/store/file_store.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

enum class Moment { kBeforeRun, kSends, kSendsToTheSecond, kReceives, kRebuild, kRebuilt };

struct Start {
  int world = 3;
  bool alike = false;  // else rank 0 alone has the right weights
  bool with_newcomer = false;
  int victim = 0;
  Moment moment = Moment::kBeforeRun;

  // Nobody knows what rank 0 had.
  bool is_lost() const { return victim == 0 && (moment == Moment::kBeforeRun || moment == Moment::kSends); }
  // Rank 1 may have got all, or has noticed the death before.
  bool is_open() const { return moment == Moment::kSendsToTheSecond; }
};

void kill_in(Program& program, const Start& start, int number) {
  const auto die_in = [&start, number](Moment moment) {
    if (number == start.victim && moment == start.moment) raise(SIGKILL);
  };
  program.before_run = [&program, &start, number, die_in] {
    const torch::NoGradGuard no_grad;
    if (!start.alike && number != 0) program.net->last->weight += number;
    die_in(Moment::kBeforeRun);
  };
  program.in_save = [die_in, times = 0]() mutable {
    die_in(++times == 1 ? Moment::kSends : Moment::kSendsToTheSecond);
  };
  program.in_restore = [die_in] { die_in(Moment::kReceives); };
  program.in_rebuild = [die_in] { die_in(Moment::kRebuild); };
  program.rebuilt = [die_in] { die_in(Moment::kRebuilt); };
}

Program program_of(const Start& start) {
  return {.micro_batches = start.world, .steps = 3, .newcomer_timeout = std::chrono::seconds(30)};
}

// How a process has ended: "right", "error" or "not needed".
std::string outcome_of(const Start& start, int number, const SharedScratchFolder& folder) {
  Program mine = program_of(start);
  kill_in(mine, start, number);
  const bool is_newcomer = number == start.world;
  if (start.with_newcomer) mine.newcomers = comm::FileStore::open(folder.path("waiting")).value();
  const ProcessGroupGuard guard("", elastic_world(folder.path("store"), number, start.world, is_newcomer));
  try {
    if (train(mine, number, is_newcomer) < 0) return "not needed";
  } catch (const std::exception& error) {
    EXPECT_EQ(error_code(error), ErrorCode::kPeerFailed) << error.what();
    EXPECT_NE(std::string(error.what()).find("no rank that is left has the state of rank 0"), std::string::npos)
        << error.what();
    return "error";
  }
  expect_weights(mine, start.world - (start.with_newcomer ? 0 : 1));
  torch::Tensor quiet;
  torch::load(quiet, folder.path("quiet"));
  if (start.with_newcomer) {
    EXPECT_TRUE(torch::equal(mine.weights(), quiet));
  }
  return "right";
}

void expect_right_weights_or_an_error(const Start& start) {
  SCOPED_TRACE(testing::Message() << "world " << start.world << ", victim " << start.victim << ", moment "
                                  << static_cast<int>(start.moment) << ", alike " << start.alike << ", newcomer "
                                  << start.with_newcomer);
  const SharedScratchFolder folder;
  run_processes(start.world, [&](int rank) {
    const ProcessGroupGuard guard("", kElasticWorld);
    Program quiet = program_of(start);
    train(quiet, rank);
    if (rank == 0) torch::save(quiet.weights(), folder.path("quiet"));
  });
  run_processes(start.world + (start.with_newcomer ? 1 : 0), [&](int number) {
    run_mortal([&] {
      const std::string outcome = outcome_of(start, number, folder);
      std::ofstream(folder.path("end." + std::to_string(number))) << outcome;
    });
  });
  EXPECT_FALSE(std::filesystem::exists(folder.path("end." + std::to_string(start.victim)))) << "it did not die";
  const std::string first = read_file(folder.path(start.victim == 0 ? "end.1" : "end.0"));
  EXPECT_TRUE(start.is_open() || first == (start.is_lost() ? "error" : "right")) << first;
  for (int number = 0; number < start.world; ++number) {
    EXPECT_TRUE(number == start.victim || read_file(folder.path("end." + std::to_string(number))) == first) << number;
  }
  if (start.with_newcomer) {
    EXPECT_EQ(read_file(folder.path("end." + std::to_string(start.world))), first == "right" ? first : "not needed");
  }
}

class ElasticStartFault : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ElasticStartFault, testing::Values(2, 3, 4));

TEST_P(ElasticStartFault, RankZeroAloneHasTheRightWeights) {
  const int world = GetParam();
  for (const bool with_newcomer : {false, true}) {
    for (const Moment moment :
         {Moment::kBeforeRun, Moment::kSends, Moment::kSendsToTheSecond, Moment::kRebuild, Moment::kRebuilt}) {
      if (moment == Moment::kSendsToTheSecond && world == 2) continue;
      expect_right_weights_or_an_error({world, false, with_newcomer, 0, moment});
    }
    for (const Moment moment : {Moment::kBeforeRun, Moment::kReceives, Moment::kRebuild, Moment::kRebuilt})
      expect_right_weights_or_an_error({world, false, with_newcomer, world - 1, moment});
  }
}

TEST_P(ElasticStartFault, AllRanksHaveTheRightWeights) {
  for (const bool with_newcomer : {false, true}) {
    for (const Moment moment : {Moment::kBeforeRun, Moment::kRebuild, Moment::kRebuilt}) {
      for (const int victim : {0, 1})
        expect_right_weights_or_an_error({GetParam(), true, with_newcomer, victim, moment});
    }
  }
}

// What the ranks other than 0 have in another way.
enum class Difference {
  kNone,
  kParameter,
  kBuffer,
  kLearningRate,
  kOptimizerState,
  kNoOptimizerState,
  kScheduler,
  kCursor
};

void expect_the_state_of_rank_zero(int rank, Difference difference) {
  const ProcessGroupGuard guard("", kElasticWorld);
  Program mine{.with_batch_norm = true, .adam = true};
  mine.make();
  auto& adam = dynamic_cast<torch::optim::Adam&>(*mine.optimizer);
  for (torch::Tensor& parameter : adam.parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  if (difference != Difference::kOptimizerState || rank > 0) adam.step();
  const torch::NoGradGuard no_grad;
  auto& options = dynamic_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options());
  if (difference == Difference::kParameter) mine.net->last->bias += rank;
  if (difference == Difference::kBuffer) mine.net->norm->running_mean += rank;
  if (difference == Difference::kLearningRate) options.lr(0.02 + rank);
  if (difference == Difference::kNoOptimizerState && rank > 0) adam.state().clear();
  if (difference == Difference::kScheduler && rank > 0) {
    mine.scheduler->step();
    options.lr(0.02);
  }
  if (difference == Difference::kCursor && rank > 0) mine.loader->next({});
  int sent = 0;
  ElasticTraining training({});
  training.add_model(*mine.net);
  training.add_optimizer(adam);
  training.add_scheduler(*mine.scheduler);
  training.add_loader(*mine.loader);
  training.add_state([&](checkpoint::Checkpoint&) { ++sent; }, [](const checkpoint::Checkpoint&) {});
  training.run(0, {.gradients = [](ElasticStep&) {}, .update = [](std::int64_t) {}});
  EXPECT_EQ(sent, rank == 0 && difference != Difference::kNone ? get_world_size() - 1 : 0);
  checkpoint::Checkpoint state;
  state.add_model(*mine.net);
  state.add_optimizer(adam);
  state.add_scheduler(*mine.scheduler);
  state.set("cursor", data::to_string(mine.loader->state()));
  const auto& [tensors, values] = state.content();
  for (const auto& [others, their_values] : all_gather_object(std::pair(tensors, values))) {
    EXPECT_EQ(their_values, values);
    ASSERT_EQ(others.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(others.at(name), tensor)) << name;
  }
}

TEST(ElasticStartMulti, RanksBeginWithTheStateOfRankZero) {
  for (int world = 1; world <= 4; ++world) {
    for (const Difference difference :
         {Difference::kNone, Difference::kParameter, Difference::kBuffer, Difference::kLearningRate,
          Difference::kOptimizerState, Difference::kNoOptimizerState, Difference::kScheduler, Difference::kCursor}) {
      SCOPED_TRACE(testing::Message() << "world " << world << ", difference " << static_cast<int>(difference));
      run_processes(world, [&](int rank) { expect_the_state_of_rank_zero(rank, difference); });
    }
  }
}

}  // namespace
}  // namespace lockstep::test
