// The simulation that trains as it runs, under mpirun.
#ifdef LOCKSTEP_HAS_MPI
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep::test {
namespace {

// The losses that rank 0 printed.
std::vector<double> losses_of_simulation(int ranks, const std::string& way) {
  const Finished finished =
      run_program({"mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo", "--mca",
                   "mpi_yield_when_idle", "1", "--mca", "btl", "self,vader", "-n", std::to_string(ranks),
                   LOCKSTEP_EXAMPLES_FOLDER "/simulation", way});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  std::vector<double> losses;
  std::istringstream lines(finished.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string round, number, loss;
    double value = 0;
    if (words >> round >> number >> loss >> value && loss == "loss") losses.push_back(value);
  }
  return losses;
}

class SimulationExampleMulti : public testing::TestWithParam<int> {};

// Each costs three starts of mpirun: 8 s of a core. With 5 ranks three of them train.
TEST_P(SimulationExampleMulti, LearnsWhatTheProgramByHandLearns) {
  const std::vector<double> by_hand = losses_of_simulation(GetParam(), "by-hand");
  ASSERT_EQ(by_hand.size(), 60U);
  EXPECT_LT(by_hand.back(), by_hand.front() / 10);
  for (const char* way : {"lockstep", "mpi"}) {
    const std::vector<double> losses = losses_of_simulation(GetParam(), way);
    ASSERT_EQ(losses.size(), by_hand.size()) << way;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], by_hand[i], 1e-5 * std::abs(by_hand[i])) << way << ", step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SimulationExampleMulti, testing::Values(2, 5));

}  // namespace
}  // namespace lockstep::test
#endif
