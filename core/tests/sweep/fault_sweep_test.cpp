// A rank that is killed, or frozen and resumed, at every step of the engine: the others end with an error that names
// it, nothing hangs, nothing is left, and memory that is used for something else stays as it is.
//
// By default some of the steps; LOCKSTEP_TEST_SWEEP=all takes every one, each time that a rank comes to it (half an
// hour).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include "support/effort.h"
#include "sweep/run.h"
#include "sweep/script.h"

namespace lockstep::test {
namespace {

// Each point that the victim comes to: every time, or by default one of `share` of them, once.
void sweep(int world, int victim, int signal, bool machines, int share) {
  ScriptSettings settings;
  settings.world = world;
  settings.victim = victim;
  settings.machines = machines;
  Run census(settings);
  ASSERT_EQ(census.finish(), "");
  ASSERT_GT(census.points().size(), 20U);
  settings.signal = signal;
  const char* const mode = std::getenv("LOCKSTEP_TEST_SWEEP");
  const bool all = mode != nullptr && std::string(mode) == "all";
  std::mt19937 random(world * 100 + victim * 10 + signal);
  std::vector<ScriptSettings> scenarios;
  for (const auto& [point, count] : census.points()) {
    settings.point = point;
    for (int passing = 1; all && passing <= count; ++passing) {
      settings.passing = passing;
      scenarios.push_back(settings);
    }
    settings.passing = 1 + static_cast<int>(random() % count);
    if (!all && random() % share == 0) scenarios.push_back(settings);
  }
  run_all(scenarios);
}

struct World {
  int world;
  int victim;
  bool machines;
};

class SweepFault : public testing::TestWithParam<World> {
 protected:
  static void sweep_with(int signal, int share) {
    if (ScriptSettings::is_rank()) return run_script(ScriptSettings::of_process());
    const World& place = GetParam();
    sweep(place.world, place.victim, signal, place.machines, share * kSlowdown);
  }
};

TEST_P(SweepFault, KilledAtEveryStep) {
  sweep_with(SIGKILL, 3);
}
TEST_P(SweepFault, FrozenAtEveryStepAndResumed) {
  sweep_with(SIGSTOP, 6);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SweepFault,
                         testing::Values(World{2, 0, false}, World{2, 1, false}, World{3, 0, false}, World{3, 2, false},
                                         World{5, 4, false}, World{3, 2, true}, World{3, 0, true}),
                         [](const auto& info) {
                           return fmt::format("{}Ranks{}StopsIn{}", info.param.world, info.param.victim,
                                              info.param.machines ? "Machines" : "OneMachine");
                         });

}  // namespace
}  // namespace lockstep::test
