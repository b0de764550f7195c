#include "support/mpirun.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "support/sanitizers.h"

namespace lockstep::test {
namespace {

constexpr const char* kWord = "LOCKSTEP_TEST_MPI_WORD";

std::string current_test() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", test->test_suite_name(), test->name());
}

}  // namespace

bool is_mpi_rank() {
  return !mpi_word().empty();
}

std::string mpi_word() {
  const char* word = std::getenv(kWord);
  return word == nullptr ? "" : word;
}

Finished mpirun_current_test(int ranks, const std::string& word, std::chrono::seconds limit) {
  expect_no_leak_search_in_programs();  // Open MPI leaks, from plugins that are unloaded by then
  // Only on this machine: shared memory between ranks, loopback between them and mpirun.
  Process job({"mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output", "--mca", "oob_tcp_if_include", "lo",
               "--mca", "btl", "self,vader", "-n", std::to_string(ranks), testing::internal::GetArgvs().front(),
               "--gtest_filter=" + current_test(), "--gtest_brief=1"},
              {.environment = {fmt::format("{}={}", kWord, word), "OMP_NUM_THREADS=1"}});
  Finished end = job.finish(limit);
  EXPECT_TRUE(job.wait_until_no_descendant()) << "a process is left of mpirun's job";
  return end;
}

void run_under_mpirun(int ranks, const std::function<void(int rank)>& fn) {
  if (is_mpi_rank()) {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr) throw std::runtime_error("mpirun set no OMPI_COMM_WORLD_RANK");
    fn(std::stoi(rank));
    return;
  }
  const Finished end = mpirun_current_test(ranks);
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
}

}  // namespace lockstep::test
