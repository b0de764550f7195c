// A rank is killed: the others hear of it soon, with its number.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>

#include "c10d/ranks.h"
#include "lockstep/launch/spawn.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// Runs all_reduce after all_reduce until an error comes, and writes down what came.
void reduce_until_error(const std::filesystem::path& report) {
  const ProcessGroupGuard group;
  const torch::Tensor tensor = torch::ones({1 << 20});
  const auto start = std::chrono::steady_clock::now();
  std::string text = "no error";
  try {
    while (std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) all_reduce(tensor.fill_(1));
  } catch (const std::exception& error) {
    text = fmt::format("{}: {}", to_string(error_code(error)), error.what());
  }
  std::ofstream(report) << text;
}

void die_in_the_middle() {
  const ProcessGroupGuard group;
  const torch::Tensor tensor = torch::ones({1 << 20});
  for (int i = 0; i < 10; ++i) all_reduce(tensor);
  const Work work = all_reduce_async(tensor);
  raise(SIGKILL);
}

TEST(KilledRankFault, SurvivorsGetAnErrorThatNamesIt) {
  const char* shared = getenv("LOCKSTEP_TEST_REPORTS");
  const ScratchFolder folder;
  const std::filesystem::path reports = shared == nullptr ? folder.path() : std::filesystem::path(shared);
  launch::SpawnOptions options;
  options.nprocs = 3;
  options.timeout = std::chrono::seconds(60);
  options.grace = std::chrono::seconds(20);
  options.call_number = 1;
  options.argv = {testing::internal::GetArgvs().front(),
                  "--gtest_filter=KilledRankFault.SurvivorsGetAnErrorThatNamesIt", "--gtest_brief=1"};
  options.environment = {{"LOCKSTEP_TEST_REPORTS", reports.native()}};
  const auto start = std::chrono::steady_clock::now();
  const Status status = launch::spawn(
      [&](int rank) {
        if (rank == 1) {
          die_in_the_middle();
        } else {
          signal(SIGTERM, SIG_IGN);  // spawn stops the others when one fails; they are to speak first
          reduce_until_error(reports / std::to_string(rank));
        }
      },
      options);
  EXPECT_NE(status.message().find("SIGKILL"), std::string::npos) << status.message();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  for (const char* rank : {"0", "2"}) {
    std::ifstream file(reports / rank);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
    EXPECT_EQ(text.find(to_string(ErrorCode::kPeerFailed)), 0U) << text;
  }
}

}  // namespace
}  // namespace lockstep::test
