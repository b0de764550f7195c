#include "lockstep/launch/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "launch/job/first_failure.h"
#include "launch/job/spawn_child.h"
#include "lockstep/base/fd.h"
#include "lockstep/store/rendezvous.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// The ranks run the current test up to this call, whatever else their parent runs.
Status spawn_here(int nprocs, int call, const std::function<void(int)>& fn, std::chrono::milliseconds timeout = 30s,
                  std::chrono::milliseconds grace = 200ms) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  SpawnOptions options;
  options.nprocs = nprocs;
  options.call_number = call;
  options.timeout = timeout;
  options.grace = grace;
  options.argv = {testing::internal::GetArgvs().front(),
                  std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(), "--gtest_brief=1"};
  return spawn(fn, options);
}

// What fn EXPECTs must hold in each rank.
void expect_in_ranks(int nprocs, int call, const std::function<void(int)>& fn) {
  const test::Leftovers before = test::Leftovers::now();
  const Status status = spawn_here(nprocs, call, [&fn](int rank) {
    fn(rank);
    if (testing::Test::HasFailure()) throw std::runtime_error("a check failed");
  });
  EXPECT_TRUE(status.ok()) << status.message();
  test::expect_nothing_left(before);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(unset)" : value;
}

[[noreturn]] void wait_for_ever() {
  for (;;) pause();
}

TEST(Spawn, RefusesFewerThanOneProcess) {
  for (const int nprocs : {0, -3}) {
    SpawnOptions options;
    options.nprocs = nprocs;
    const Status status = spawn([](int) {}, options);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find("nprocs is " + std::to_string(nprocs)), std::string::npos) << status.message();
  }
}

TEST(SpawnMulti, EveryRankHasALaunchersEnvironment) {
  expect_in_ranks(3, 1, [](int rank) {
    EXPECT_EQ(variable("RANK"), std::to_string(rank));
    EXPECT_EQ(variable("LOCAL_RANK"), std::to_string(rank));
    EXPECT_EQ(variable("WORLD_SIZE"), "3");
    EXPECT_EQ(variable("LOCAL_WORLD_SIZE"), "3");
    EXPECT_EQ(variable("MASTER_ADDR"), "127.0.0.1");
    EXPECT_GT(std::stoi(variable("MASTER_PORT")), 0);
    EXPECT_EQ(variable("LOCKSTEP_JOB_KEY").size(), 64U);
    EXPECT_EQ(variable("LOCKSTEP_SPAWN_CHILD"), "(unset)");
  });
}

// The test starts itself again as the parent of spawn, without standard descriptors.
TEST(SpawnMulti, StandardDescriptorsThatAreClosedAreEmpty) {
  constexpr const char* kRole = "LOCKSTEP_TEST_SPAWN_CLOSED";
  const char* const stage = std::getenv(kRole);
  if (stage == nullptr) {
    test::Process::Settings settings;
    settings.environment = {std::string(kRole) + "=1"};
    test::Process parent({"/proc/self/exe", "--gtest_filter=SpawnMulti.StandardDescriptorsThatAreClosedAreEmpty"},
                         settings);
    EXPECT_EQ(parent.finish().exit_code, 3);
    return;
  }
  if (spawn_child() == nullptr) {
    for (const int fd : {0, 1, 2}) close(fd);
  }
  const Status status = spawn_here(2, 1, [](int) {
    for (const char* fd : {"0", "1", "2"}) {
      if (std::filesystem::read_symlink(std::string("/proc/self/fd/") + fd) != "/dev/null") std::exit(7);
    }
  });
  _exit(status.ok() ? 3 : 4);
}

TEST(SpawnMulti, CallsAreToldApart) {
  expect_in_ranks(1, 1, [](int) { EXPECT_EQ(variable("WORLD_SIZE"), "1"); });
  expect_in_ranks(2, 2, [](int) { EXPECT_EQ(variable("WORLD_SIZE"), "2"); });
}

TEST(SpawnMulti, ExceptionNamesRankAndText) {
  const test::Leftovers before = test::Leftovers::now();
  const Status status = spawn_here(3, 1, [](int rank) {
    if (rank == 1) throw std::runtime_error("the sample is broken");
    wait_for_ever();
  });
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(status.message(), "spawn: rank 1 of 3 threw: the sample is broken");
  test::expect_nothing_left(before);
}

TEST(SpawnFault, SignalIsNamed) {
  const Status status = spawn_here(2, 1, [](int rank) {
    if (rank == 1) raise(SIGKILL);
    wait_for_ever();
  });
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("rank 1 of 2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("signal SIGKILL (9)"), std::string::npos) << status.message();
}

// Rank 0 has told the others and unwinds until rank 1 has failed because of it and has exited.
TEST(SpawnFault, TheRankThatClaimedTheFailureIsNamedThoughAnotherExitedBefore) {
  const test::SharedScratchFolder folder;
  const auto fail = [&](int rank) {
    const Fd alive(open(folder.path("alive").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const auto wait_for = [&](const char* name) {
      while (access(folder.path(name).c_str(), F_OK) != 0) usleep(1000);
    };
    const auto tell = [&](const char* name) { Fd(open(folder.path(name).c_str(), O_CREAT | O_WRONLY, 0600)); };
    if (rank == 1) {
      flock(alive.get(), LOCK_EX);
      tell("locked");
      wait_for("claimed");
      // No destructor of `alive`: the lock is held until the process has exited.
      _exit(7);
    }
    wait_for("locked");
    if (!claim_first_failure(rank).ok()) throw std::runtime_error("cannot claim");
    tell("claimed");
    flock(alive.get(), LOCK_EX);
    throw std::runtime_error("the cause");
  };
  EXPECT_EQ(spawn_here(2, 1, fail, 30s, 20s).message(), "spawn: rank 0 of 2 threw: the cause");
}

// The ranks' stdout is the test's. Here each has a file of its own, as if a shell had redirected it.
TEST(SpawnFault, AnAbortLosesNoLine) {
  const test::SharedScratchFolder folder;
  const auto path = [&](int rank) { return folder.path("out" + std::to_string(rank)); };
  const Status status = spawn_here(2, 1, [&](int rank) {
    const Fd file(open(path(rank).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    dup2(file.get(), STDOUT_FILENO);
    std::printf("the last line of rank %d\nunfinished", rank);
    if (rank == 1) std::abort();
    wait_for_ever();
  });
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(test::read_file(path(1)).ends_with("the last line of rank 1\n")) << test::read_file(path(1));
}

TEST(SpawnFault, ExitCodeIsNamed) {
  const Status status = spawn_here(1, 1, [](int) { std::exit(7); });
  EXPECT_NE(status.message().find("rank 0 of 1"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("exit code 7"), std::string::npos) << status.message();
}

TEST(SpawnFault, ProcessThatNeverArrivesIsAnError) {
  SpawnOptions options;
  options.nprocs = 2;
  options.argv = {"spawn_test", "--gtest_list_tests", "--gtest_filter=-*"};
  const Status status = spawn([](int) {}, options);
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("before it reached call"), std::string::npos) << status.message();
}

TEST(SpawnFault, TimeoutNamesTheRanksThatStillRan) {
  const test::Leftovers before = test::Leftovers::now();
  const Status status = spawn_here(
      2, 1, [](int) { wait_for_ever(); }, 300ms);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_NE(status.message().find("rank 0, 1 of 2"), std::string::npos) << status.message();
  test::expect_nothing_left(before);
}

TEST(SpawnMulti, NestedSpawnIsRefused) {
  expect_in_ranks(2, 1, [](int) {
    SpawnOptions options;
    options.nprocs = 2;
    const Status status = spawn([](int) {}, options);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.message().find("inside the function of another spawn"), std::string::npos) << status.message();
  });
}

TEST(SpawnFault, GrandchildrenThatHideAreEnded) {
  const test::Leftovers before = test::Leftovers::now();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  // All descendants inherit the write end, so end of file means that none of them lives.
  const Status status = spawn_here(1, 1, [](int) {
    if (fork() == 0) {
      setsid();
      if (fork() != 0) _exit(0);
      signal(SIGTERM, SIG_IGN);
      wait_for_ever();
    }
    wait(nullptr);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  close(pipe_ends[1]);
  char byte = 0;
  EXPECT_EQ(read(pipe_ends[0], &byte, 1), 0);
  close(pipe_ends[0]);
  test::expect_nothing_left(before);
}

// The test starts itself again as the parent of spawn; a variable in the environment says so.
TEST(SpawnFault, KillOfTheParentEndsEveryDescendant) {
  constexpr const char* kRole = "LOCKSTEP_TEST_SPAWN_PARENT";
  if (std::getenv(kRole) != nullptr) {
    const Status status = spawn_here(2, 1, [](int) {
      if (fork() == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        wait_for_ever();
      }
      wait(nullptr);
      std::puts("ready");
      std::fflush(stdout);
      wait_for_ever();
    });
    FAIL() << "spawn returned: " << status.message();
  }
  test::Process::Settings settings;
  settings.environment = {std::string(kRole) + "=1"};
  test::Process parent({"/proc/self/exe", "--gtest_filter=SpawnFault.KillOfTheParentEndsEveryDescendant"}, settings);
  ASSERT_TRUE(test::wait_for([&] {
    const std::string out = parent.out_so_far();
    const std::size_t first = out.find("ready");
    return first != std::string::npos && out.find("ready", first + 1) != std::string::npos;
  }));
  kill(parent.pid(), SIGKILL);
  EXPECT_EQ(parent.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(parent.wait_until_no_descendant());
}

// The others would wait for it until their timeout.
TEST(SpawnFault, ARankThatEndsBeforeItJoinsIsToldToTheOthers) {
  const Status status = spawn_here(2, 1, [](int rank) {
    if (rank == 1) return;
    const auto met = comm::rendezvous(comm::RendezvousOptions());
    throw std::runtime_error(met.ok() ? "joined" : met.status().message());
  });
  EXPECT_NE(status.message().find("rank 1 could not take part: it has ended with exit code 0 before it joined"),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace lockstep::launch
