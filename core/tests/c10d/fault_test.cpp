// A rank is killed: the others soon get an error that names it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "c10d/ranks.h"
#include "c10d/world/own_group.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/store/rendezvous.h"
#include "support/process_ranks.h"
#include "support/sanitizers.h"
#include "support/thread_limit.h"

namespace lockstep::test {
namespace {

// Repeats all_reduce until an error comes, and writes it to a file.
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
  const auto start = std::chrono::steady_clock::now();
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [](int rank, const std::filesystem::path& report) {
        rank == 1 ? die_in_the_middle() : reduce_until_error(report);
      },
      [](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
        EXPECT_EQ(text.find(to_string(ErrorCode::kPeerFailed)), 0U) << text;
      });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
}

// Rank 0 sends large messages to rank 1, one after another; `victim` is killed during one of them.
void die_amid_messages(int victim, bool in_arena) {
  run_processes_with_a_victim(
      2, victim,
      [victim, in_arena](int rank, const std::filesystem::path& report) {
        const ProcessGroupGuard group;
        const auto options = torch::TensorOptions().dtype(torch::kFloat);
        constexpr std::int64_t kElements = 4 << 20;
        const torch::Tensor tensor =
            in_arena ? default_group()->getBackend(torch::kCPU)->allocateTensor(kElements, options).fill_(1)
                     : torch::ones({kElements}, options);
        const auto pass = [&] { rank == 0 ? send(tensor, 1) : static_cast<void>(recv(tensor, 0)); };
        pass();
        std::thread killer;
        if (rank == victim) {
          killer = std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // during the following messages
            raise(SIGKILL);
          });
        }
        std::string text;
        while (text.empty()) {
          try {
            pass();
          } catch (const std::exception& error) {
            text = fmt::format("{}: {}", to_string(error_code(error)), error.what());
          }
        }
        std::ofstream(report) << text;
        if (killer.joinable()) killer.join();
      },
      [victim](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        EXPECT_NE(text.find(fmt::format("rank {}", victim)), std::string::npos) << text;
        EXPECT_EQ(text.find(to_string(ErrorCode::kPeerFailed)), 0U) << text;
      });
}

TEST(LostMessageFault, SenderDiesWithinALargeMessage) {
  die_amid_messages(/*victim=*/0, /*in_arena=*/false);
}

TEST(LostMessageFault, ReceiverDiesWithinALargeMessageFromTheArena) {
  die_amid_messages(/*victim=*/1, /*in_arena=*/true);
}

// Rank 1 dies before a barrier: the barrier's error, whether somebody waits for its work or not.
std::string error_of_barrier(bool by_future) {
  const ProcessGroupGuard group;
  barrier();
  const Work work = barrier_async();
  if (by_future) {
    work->getFuture()->waitAndThrow();
  } else {
    while (!work->isCompleted()) std::this_thread::yield();
    if (!work->isSuccess()) std::rethrow_exception(work->exception());
  }
  return "no error";
}

TEST(KilledRankFault, PollingAndFuturesEndWithAnErrorThatNamesIt) {
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [](int rank, const std::filesystem::path& report) {
        if (rank == 1) {
          const ProcessGroupGuard group;
          barrier();
          raise(SIGKILL);
        }
        try {
          std::ofstream(report) << error_of_barrier(/*by_future=*/rank == 0);
        } catch (const std::exception& error) {
          std::ofstream(report) << error.what();
        }
      },
      [](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        EXPECT_NE(text.find("rank 1 (pid"), std::string::npos) << text;
      });
}

// Some rank may still be in an earlier barrier.
void break_world(int rank) {
  expect_error(ErrorCode::kAborted, {"the test breaks the world"}, [rank] {
    barrier();
    if (rank == 0) abort_process_group("the test breaks the world");
    while (true) barrier();
  });
}

// Rank 1 dies before the others make a group with it. They do not wait for the timeout. `broken`: the world broke
// before for another reason.
void die_before_a_new_group(int world, const std::function<void(int rank)>& make, bool broken = false) {
  run_processes_with_a_victim(
      world, /*victim=*/1,
      [&](int rank, const std::filesystem::path& report) {
        const ProcessGroupGuard group;
        barrier();
        if (broken) break_world(rank);
        if (rank == 1) raise(SIGKILL);
        const auto start = std::chrono::steady_clock::now();
        std::string text = "no error";
        try {
          make(rank);
        } catch (const std::exception& error) {
          text = fmt::format("{}: {}", to_string(error_code(error)), error.what());
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
        std::ofstream(report) << text;
        std::vector<int> survivors{0};
        for (int other = 2; other < world; ++other) survivors.push_back(other);
        EXPECT_NO_THROW(new_group(survivors)) << "the survivors can make a group";
      },
      [](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        EXPECT_EQ(text.find(to_string(ErrorCode::kPeerFailed)), 0U) << text;
        EXPECT_NE(text.find("rank 1 (pid"), std::string::npos) << text;
      });
}

TEST(KilledRankFault, NewGroupEndsWithAnErrorThatNamesIt) {
  die_before_a_new_group(3, [](int) { new_group({.timeout = std::chrono::seconds(40)}); });
}

// On the machine of rank 1, and on another one with and without a connection to it.
TEST(KilledRankFault, NewGroupOverTwoMachinesToo) {
  setenv("LOCKSTEP_TEST_MACHINES", "2", 1);
  die_before_a_new_group(4, [](int rank) { new_group({1, rank}, {.timeout = std::chrono::seconds(40)}); });
  unsetenv("LOCKSTEP_TEST_MACHINES");
}

// The ranks of another machine have no connection to rank 1 any more.
TEST(KilledRankFault, NewGroupAfterTheWorldBrokeToo) {
  setenv("LOCKSTEP_TEST_MACHINES", "2", 1);
  die_before_a_new_group(
      4,
      [](int rank) {
        new_group({1, rank}, {.timeout = std::chrono::seconds(40)});
      },
      /*broken=*/true);
  unsetenv("LOCKSTEP_TEST_MACHINES");
}

// Rank 1 dies while groups of these ranks are made, at any moment.
void die_amid_new_groups(const std::vector<int>& ranks) {
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [&](int rank, const std::filesystem::path& report) {
        const ProcessGroupGuard group;
        std::thread killer;
        if (rank == 1) {
          killer = std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            raise(SIGKILL);
          });
        }
        auto start = std::chrono::steady_clock::now();
        std::string text;
        while (text.empty()) {
          start = std::chrono::steady_clock::now();
          try {
            new_group(ranks, {.timeout = std::chrono::seconds(40)});
          } catch (const std::exception& error) {
            text = fmt::format("{}: {}", to_string(error_code(error)), error.what());
          }
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
        std::ofstream(report) << text;
        if (killer.joinable()) killer.join();
      },
      [](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const bool named = text.find("rank 1") != std::string::npos || text.find("rank(s) 1") != std::string::npos;
        EXPECT_TRUE(named) << text;
      });
}

TEST(KilledRankFault, TheFirstMemberDiesAmidNewGroups) {
  die_amid_new_groups({1, 0, 2});
}

TEST(KilledRankFault, AnotherMemberDiesAmidNewGroups) {
  die_amid_new_groups({0, 1, 2});
}

TEST(KilledRankFault, AGroupOfTheLibrarysOwnToo) {
  die_before_a_new_group(3, [](int) { own_group(default_group(), c10::kCPU, "test"); });
}

// The world has told who died, and closed the connections that could tell it again.
TEST(KilledRankFault, AGroupOfTheLibrarysOwnInABrokenWorldToo) {
  setenv("LOCKSTEP_TEST_MACHINES", "2", 1);
  die_before_a_new_group(3, [](int) {
    expect_error(ErrorCode::kPeerFailed, {"rank 1 (pid"}, [] { barrier(); });
    own_group(default_group(), c10::kCPU, "test");
  });
  unsetenv("LOCKSTEP_TEST_MACHINES");
}

// Rank 0 breaks the world while the others wait for it in a group of the library's own.
void break_world_amid_an_own_group() {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard group;
    const auto store = default_group()->getStore();
    if (rank == 0) {
      store->wait({"there 1", "there 2"});
      abort_process_group("the test breaks the world");
      store->wait({"done 1", "done 2"});
      return;
    }
    store->set(fmt::format("there {}", rank), std::vector<std::uint8_t>{1});
    expect_error(ErrorCode::kAborted, {"the test breaks the world"},
                 [] { own_group(default_group(), c10::kCPU, "test"); });
    store->set(fmt::format("done {}", rank), std::vector<std::uint8_t>{1});
  });
}

TEST(AbortedWorldFault, EndsTheMakingOfAGroupOfTheLibrarysOwn) {
  break_world_amid_an_own_group();
}

TEST(AbortedWorldFault, EndsTheMakingOfAGroupOfTheLibrarysOwnOnOtherMachinesToo) {
  setenv("LOCKSTEP_TEST_MACHINES", "3", 1);
  break_world_amid_an_own_group();
  unsetenv("LOCKSTEP_TEST_MACHINES");
}

// Without threads a future fails, but the work itself needs none and goes on.
TEST(FutureThreadsFault, WithoutAThreadTheFutureIsAnErrorAndTheWorkEnds) {
  expect_no_leak_search_in_programs();
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    const torch::Tensor tensor = torch::ones({3});
    barrier();
    if (rank == 0) {
      refuse_threads();
      const Work work = irecv(tensor, 1);
      for (int i = 0; i < 2; ++i) {
        expect_error(ErrorCode::kUnavailable, {"cannot start a thread", "pids limit"}, [&] { work->getFuture(); });
      }
      send(torch::zeros({1}), 1);
      work->wait();
      expect_equal(tensor, torch::full({3}, 7.0F), "received");
    } else {
      recv(torch::zeros({1}), 0);
      send(torch::full({3}, 7.0F), 0);
    }
    barrier();
  });
}

// Rank 1 has no descriptor left for the memory that it is to share: rank 0 does not wait for it.
TEST(RankWithoutMemoryFault, IsToldToTheOthers) {
  run_processes(2, [](int rank) {
    auto met = comm::rendezvous(comm::RendezvousOptions()).value();
    ProcessGroupLockstepOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.timeout = std::chrono::seconds(20);
    options.members = met.members;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit none_left = before;
    none_left.rlim_cur = 0;
    while (fcntl(static_cast<int>(none_left.rlim_cur), F_GETFD) >= 0) ++none_left.rlim_cur;
    if (rank == 1) {
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
    }
    expect_error(ErrorCode::kIo, {"rank 1", "Too many open files"},
                 [&] { ProcessGroupLockstep::create(met.store, options); });
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    static_cast<void>(met.release(std::chrono::seconds(2)));
  });
}

}  // namespace
}  // namespace lockstep::test
