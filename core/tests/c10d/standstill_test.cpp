// Leaving a world in which a process is stopped: a rank with an error leaves soon, whichever process it is.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "c10d/ranks.h"
#include "lockstep/base/fd.h"
#include "store/file/file_lock.h"
#include "support/machines.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// Far above the promised second, far below a minute.
constexpr double kBound = 15;
constexpr std::chrono::milliseconds kTimeout{2500};  // of joining and of operations

bool wait_until_frozen(pid_t pid) {
  return wait_for([&] { return is_stopped(pid); });
}

void mark(const std::filesystem::path& file, int number) {
  std::ofstream(file.string() + "~") << number;
  std::filesystem::rename(file.string() + "~", file);
}

int read_mark(const std::filesystem::path& file) {
  EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(file); })) << file;
  int number = 0;
  std::ifstream(file) >> number;
  return number;
}

enum class Way { kOrderly, kByException };

// Gets an error in a world with several groups, and leaves it; returns how long the leaving took.
double leave_after_error(const std::function<void()>& all_have_met, const InitOptions& options, Way way) {
  std::chrono::steady_clock::time_point error_at;
  try {
    const ProcessGroupGuard world("", options);
    std::vector<ProcessGroup> groups;
    std::vector<int> everyone(static_cast<std::size_t>(get_world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    for (int i = 0; i < 4; ++i) groups.push_back(new_group(everyone));
    torch::Tensor tensor = torch::ones({10});
    for (const ProcessGroup& group : groups) all_reduce(tensor, {.group = group});
    barrier();
    all_have_met();
    // Under way, with much time left, in groups that are left: waiting for them would be in vain.
    std::vector<Work> begun;
    try {
      for (const ProcessGroup& group : groups) {  // a late rank gets an error here already
        begun.push_back(all_reduce_async(torch::ones({10}), {.group = group, .timeout = std::chrono::minutes(1)}));
      }
      all_reduce(tensor);
      ADD_FAILURE() << "no error";
    } catch (const std::exception&) {
      error_at = std::chrono::steady_clock::now();
      if (way == Way::kByException) throw;
    }
  } catch (const std::exception& error) {
    EXPECT_EQ(way, Way::kByException) << error.what();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - error_at).count();
}

// `frozen` stops once all ranks have joined: rank 0, or the process that spawned the ranks and serves the store.
void leave_while_frozen(int world, bool launcher, Way way, const std::function<InitOptions()>& options,
                        const std::function<void()>& before_freeze = {}) {
  const SharedScratchFolder folder;
  if (::getenv("LOCKSTEP_STORE") == nullptr) mark(folder.path("launcher"), ::getpid());
  run_processes(world, [&](int rank) {
    if (!launcher) ::unsetenv("LOCKSTEP_STORE");  // then rank 0 serves one
    // Programs with LibTorch start at different times on a busy machine. They join, in a short time, when all are
    // there.
    mark(folder.path(fmt::format("here{}", rank)), 1);
    for (int other = 0; other < world; ++other) read_mark(folder.path(fmt::format("here{}", other)));
    const auto victim = [&] { return read_mark(folder.path(launcher ? "launcher" : "rank0")); };
    const auto freeze = [&] {
      if (!launcher && rank == 0) {
        if (before_freeze) before_freeze();
        mark(folder.path("rank0"), ::getpid());
        ::raise(SIGSTOP);
      } else {
        if (launcher && rank == 0) std::this_thread::sleep_for(kTimeout * 2);  // one rank has to be late
        if (launcher) ::kill(victim(), SIGSTOP);
        EXPECT_TRUE(wait_until_frozen(victim()));
      }
    };
    const double seconds = leave_after_error(freeze, options(), way);
    mark(folder.path(fmt::format("left{}", rank)), 1);
    if (!launcher && rank == 0) return;
    EXPECT_LT(seconds, kBound) << "rank " << rank;
    for (int other = launcher ? 0 : 1; other < world; ++other) read_mark(folder.path(fmt::format("left{}", other)));
    ::kill(victim(), SIGCONT);
  });
}

InitOptions by_environment() {
  return {.timeout = kTimeout};
}

TEST(StandstillFault, TheHostOfTheStoreIsFrozen) {
  leave_while_frozen(2, /*launcher=*/false, Way::kOrderly, by_environment);
  leave_while_frozen(3, /*launcher=*/false, Way::kByException, by_environment);
}

TEST(StandstillFault, TheLauncherThatHostsTheStoreIsFrozen) {
  leave_while_frozen(2, /*launcher=*/true, Way::kByException, by_environment);
  leave_while_frozen(3, /*launcher=*/true, Way::kOrderly, by_environment);
}

// Rank 0 holds the lock of the store's file when it stops.
TEST(StandstillFault, AStoresFileIsLockedByAFrozenRank) {
  const SharedScratchFolder folder;
  const std::string path = folder.path("store");
  Fd file;
  const auto number = [](const char* name) {
    const char* const text = ::getenv(name);
    return text == nullptr ? -1 : std::atoi(text);
  };
  const auto options = [&] {
    return InitOptions{.init_method = "file://" + path,
                       .rank = number("RANK"),
                       .world_size = number("WORLD_SIZE"),
                       .timeout = kTimeout};
  };
  const auto lock = [&] {
    file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const auto locked = [&] {
      return comm::try_lock(file.get(), comm::LockByte::kData, comm::LockMode::kExclusive, path).value();
    };
    EXPECT_TRUE(wait_for(locked));
  };
  leave_while_frozen(3, /*launcher=*/false, Way::kOrderly, options, lock);
}

}  // namespace
}  // namespace lockstep::test
