// What support/main and support/process_ranks.h say about tests and ranks that fail.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "support/process.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

TEST(ProcessRanksMulti, FailuresFailTheTest) {
  EXPECT_NONFATAL_FAILURE(run_processes(2,
                                        [](int rank) {
                                          if (rank == 1) throw std::runtime_error("a reason");
                                        }),
                          "rank 1 threw: a reason");
  EXPECT_NONFATAL_FAILURE(run_processes(2,
                                        [](int rank) {
                                          if (rank == 1) ::raise(SIGSEGV);
                                        }),
                          "rank 1 was killed by SIGSEGV");
  EXPECT_NONFATAL_FAILURE(run_processes(2, [](int rank) { ::_exit(rank * 7); }), "rank 1 exited with 7");
}

TEST(ProcessRanksMulti, RanksThatHangAreStopped) {
  EXPECT_NONFATAL_FAILURE(run_processes(
                              2,
                              [](int rank) {
                                ::signal(SIGTERM, SIG_IGN);
                                while (rank == 1) ::pause();
                              },
                              std::chrono::seconds(1)),
                          "1 ranks still ran after 1000ms");
}

TEST(ProcessRanksMulti, WhatARankStartsEndsWithIt) {
  run_processes(1, [](int) {
    if (::fork() == 0) {
      ::setsid();
      while (true) ::pause();
    }
  });
}

TEST(ProcessRanksMulti, ThreadsComeLater) {
  std::jthread other([](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
  });
  EXPECT_THROW(run_processes(1, [](int) {}), std::logic_error);
}

// Run by the test below only.
TEST(DISABLED_ForkedTest, Crashes) {
  ::raise(SIGSEGV);
}
TEST(DISABLED_ForkedTest, Fails) {
  FAIL() << "as told";
}
TEST(DISABLED_ForkedTest, FailsInARank) {
  run_processes(2, [](int rank) { EXPECT_EQ(rank, 0) << "only one is right"; });
}
TEST(DISABLED_ForkedTest, Hangs) {
  while (true) ::pause();
}
TEST(DISABLED_ForkedTest, LeavesAProcess) {
  if (::fork() == 0) {
    ::setsid();
    while (true) ::pause();
  }
}
TEST(DISABLED_ForkedTest, Passes) {}

TEST(ForkedTests, EachEndsAloneAndIsNamed) {
  const Finished finished = run_program(
      {"/proc/self/exe", "--gtest_filter=DISABLED_ForkedTest.*", "--fork-each=2", "--gtest_also_run_disabled_tests"});
  EXPECT_EQ(finished.exit_code, 1);
  for (const char* text :
       {"[  FAILED  ] DISABLED_ForkedTest.Crashes killed by SIGSEGV; (", "as told",
        "[  FAILED  ] DISABLED_ForkedTest.Fails exit code 1; (", "only one is right",
        "[  FAILED  ] DISABLED_ForkedTest.FailsInARank exit code 1; (",
        "[  FAILED  ] DISABLED_ForkedTest.Hangs still ran after 2 s; (",
        "[  FAILED  ] DISABLED_ForkedTest.LeavesAProcess left process ", "[       OK ] DISABLED_ForkedTest.Passes ("}) {
    EXPECT_NE(finished.out.find(text), std::string::npos) << text << " in " << finished.out;
  }
}

}  // namespace
}  // namespace lockstep::test
