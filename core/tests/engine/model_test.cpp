// The protocol of a group on one machine as a model (model/local_group.pml): spin goes through all orders of its steps.
// Each mistake that the model offers must be found, else the model proves nothing. LOCKSTEP_TEST_MODEL=all makes the
// largest case whole: an abort by one of three ranks in any kind of collective (1.5 minutes, 2 GiB).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// What the checker says, with its number of errors; else what went wrong before.
std::string check(const std::string& settings) {
  const ScratchFolder folder;
  const std::string script = fmt::format(
      "cd {} && spin {} -DMOST_GROUPS=6 -a {}/local_group.pml && gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -o pan "
      "pan.c"
      " && ./pan -E -n -m10000 2>&1",
      folder.path().native(), settings, LOCKSTEP_MODELS);
  Process process({"/bin/sh", "-c", script});
  const Finished end = process.finish(std::chrono::minutes(10));
  return end.out + end.err;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void expect_right(const std::string& settings) {
  const std::string said = check(settings);
  EXPECT_TRUE(says(said, "errors: 0") && !says(said, "Search not completed") &&
              !says(said, "max search depth too small"))
      << settings << "\n"
      << said;
}

constexpr auto kTwoRanks = "-DN=2 -DRING=1 -DOPS=2 -DDEATHS=1 -DABORTS=1";

TEST(EngineModel, TwoRanksWithADeathAndAnAbort) {
  expect_right(kTwoRanks);
}
TEST(EngineModel, TwoRanksWithSeveralSlots) {
  expect_right("-DN=2 -DRING=2 -DOPS=3 -DDEATHS=1 -DABORTS=0");
}
TEST(EngineModel, TwoRanksThatDisagree) {
  expect_right("-DN=2 -DRING=1 -DOPS=2 -DDEATHS=1 -DABORTS=0 -DDIFFERS");
}
TEST(EngineModel, ThreeRanksWithADeath) {
  expect_right("-DN=3 -DRING=1 -DOPS=1 -DDEATHS=1 -DABORTS=0");
}
TEST(EngineModel, ThreeRanksWithAnAbort) {
  const char* const mode = std::getenv("LOCKSTEP_TEST_MODEL");
  const bool all = mode != nullptr && std::string(mode) == "all";
  expect_right(fmt::format("-DN=3 -DRING=1 -DOPS=1 -DDEATHS=0 -DABORTS=1 {}", all ? "-DENDS" : "-DINLINE"));
}

class EngineModelSeeds : public testing::TestWithParam<const char*> {};

TEST_P(EngineModelSeeds, AreFound) {
  const std::string said = check(fmt::format("{} -DSEED_{}", kTwoRanks, GetParam()));
  EXPECT_TRUE(says(said, "assertion violated") && says(said, "errors: 1")) << said;
}
INSTANTIATE_TEST_SUITE_P(All, EngineModelSeeds,
                         testing::Values("REASON",      // the word of an abort before its reason
                                         "ORDER",       // a rank's post before its end
                                         "CLAIMS",      // a ticket that is claimed after an abort
                                         "INSIDE",      // a ticket that is claimed without a word of it
                                         "NEEDS_ALL",   // the end before all tickets are done
                                         "BROKEN",      // a result without a look at the abort
                                         "COMPLETED",   // a slot that others still read
                                         "GENERATION")  // the control memory of the earlier group
);

}  // namespace
}  // namespace lockstep::test
