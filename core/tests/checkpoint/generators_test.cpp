// The random generators of several ranks in one checkpoint.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "support/expect_error.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

// Some training: what dropout draws; normal numbers come in pairs, of which the generator may keep one.
torch::Tensor draw() {
  const torch::Tensor mask = torch::dropout(torch::ones({50}), 0.5, /*train=*/true);
  return torch::cat({mask, torch::randn({1}), torch::rand({3}, torch::kDouble).to(torch::kFloat)});
}

// No two ranks draw the same.
void expect_all_different(const torch::Tensor& mine) {
  const auto drawn = all_gather_object(mine);
  for (std::size_t a = 0; a < drawn.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(torch::equal(drawn[a], drawn[b])) << "ranks " << a << ", " << b;
  }
}

constexpr int kSaved = 3;

// A run of three ranks that saves on rank 0 and goes on; the ranks write what they draw after that.
void save_and_go_on(const std::filesystem::path& folder) {
  test::run_processes(kSaved, [&](int rank) {
    const ProcessGroupGuard group;
    torch::manual_seed(100 + rank);
    draw();
    const auto generators = gather_object(generator_state(), 0);
    if (rank == 0) {
      Checkpoint state;
      state.add_generators(generators);
      CheckpointManager(folder).save(1, state);
    } else {
      EXPECT_TRUE(generators.empty());
    }
    torch::save(draw(), (folder / ("drawn" + std::to_string(rank))).native());
    barrier();
  });
}

torch::Tensor drawn_by(const std::filesystem::path& folder, int rank) {
  torch::Tensor drawn;
  torch::load(drawn, (folder / ("drawn" + std::to_string(rank))).native());
  return drawn;
}

class GeneratorsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GeneratorsMulti, testing::Values(1, 2, 3, 5));

TEST_P(GeneratorsMulti, GoOnWithAnyNumberOfRanks) {
  const test::SharedScratchFolder scratch;
  const std::filesystem::path folder = scratch.path("run");
  std::filesystem::create_directories(folder);
  save_and_go_on(folder);
  const int world = GetParam();
  test::run_processes(world, [&](int rank) {
    torch::manual_seed(7);  // restoring must replace it
    const auto state = CheckpointManager(folder).load_latest();
    ASSERT_TRUE(state);
    // Before the process group is made, the launcher's variables tell the rank; afterwards the group does.
    state->restore_generator();
    const torch::Tensor first = draw();
    const ProcessGroupGuard group("", {.timeout = std::chrono::seconds(50)});
    state->restore_generator();
    const torch::Tensor again = draw();
    EXPECT_TRUE(torch::equal(first, again));
    if (rank < kSaved) {
      EXPECT_TRUE(torch::equal(again, drawn_by(folder, rank))) << "the bits of the run that was not stopped";
    }
    expect_all_different(again);
    barrier();
  });
}

// The group numbers the ranks otherwise than the launcher: the group counts.
TEST(GeneratorsOfGroupsMulti, FollowTheProcessGroup) {
  const test::SharedScratchFolder scratch;
  test::run_processes(2, [&](int launched) {
    const int rank = 1 - launched;
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) ::unsetenv(name);
    const ProcessGroupGuard group("",
                                  {.init_method = "file://" + scratch.path("world"), .rank = rank, .world_size = 2});
    torch::manual_seed(rank);
    const auto generators = all_gather_object(generator_state());
    const torch::Tensor expected = draw();
    Checkpoint state;
    state.add_generators(generators);
    state.restore_generator();
    EXPECT_TRUE(torch::equal(draw(), expected));
    // One rank's generator alone, restored by two: the other has another.
    state.add_generators(std::span(generators).first(1));
    std::string logged;
    log::set_output([&logged](std::string_view line) { logged += line; });
    state.restore_generator();
    log::set_output({});
    EXPECT_EQ(logged.find("rank 1 and those after it go on with new ones") != std::string::npos, rank == 1) << logged;
    expect_all_different(draw());
    barrier();
  });
}

TEST(Generators, OtherTensorsAreRefused) {
  Checkpoint state;
  const auto expect_refused = [&](const std::vector<torch::Tensor>& states, const std::string& piece) {
    test::expect_error<CheckpointError>(ErrorCode::kInvalidArgument, {piece}, [&] { state.add_generators(states); });
  };
  expect_refused({}, "every rank calls");
  expect_refused({generator_state(), torch::ones({3})}, "tensor of rank 1");
  expect_refused({torch::Tensor()}, "tensor of rank 0");
}

}  // namespace
}  // namespace lockstep::checkpoint
