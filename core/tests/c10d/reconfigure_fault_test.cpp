// Ranks that die, and the others go on without a restart.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "c10d/ranks.h"
#include "lockstep/c10d/objects.h"
#include "support/forked.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

const InitOptions kMortalWorld{.timeout = seconds(60), .enable_reconfigure = true};

bool is_loss(const std::exception& error) {
  const ErrorCode code = error_code(error);
  return code == ErrorCode::kPeerFailed || code == ErrorCode::kAborted;
}

float sum_among(int ranks) {
  return static_cast<float>(ranks * (ranks + 1)) / 2;
}

void add_up() {
  const int ranks = get_world_size();
  const torch::Tensor tensor = torch::full({1 << 16}, static_cast<float>(get_rank() + 1));
  all_reduce(tensor);
  EXPECT_EQ(tensor[17].item<float>(), sum_among(ranks));
}

// Adds up until a rank is lost, and then until the survivors are a world again.
void add_up_and_go_on(int survivors) {
  try {
    while (true) add_up();
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_loss(error)) << error.what();
  }
  for (int attempt = 0; attempt < 10; ++attempt) {
    try {
      reconfigure({.timeout = seconds(40)});
      add_up();
      break;
    } catch (const std::exception& error) {
      EXPECT_TRUE(is_loss(error)) << error.what();
    }
  }
  EXPECT_EQ(get_world_size(), survivors);
}

// The ranks of `order` kill themselves, one after another, in the middle of a collective.
void die_one_after_another(int world, const std::vector<int>& order) {
  run_processes(world, [&](int rank) {
    run_mortal([&] {
      const ProcessGroupGuard guard("", kMortalWorld);
      int left = world;
      for (const int victim : order) {
        if (rank == victim) {
          for (int i = 0; i < 3; ++i) add_up();
          const Work work = all_reduce_async(torch::full({1 << 16}, static_cast<float>(get_rank() + 1)));
          raise(SIGKILL);
        }
        add_up_and_go_on(--left);
      }
      for (int i = 0; i < 3; ++i) add_up();
    });
  });
}

TEST(ReconfigureFault, OneDies) {
  die_one_after_another(3, {1});
}

TEST(ReconfigureFault, OneAfterAnotherUntilOneIsLeft) {
  die_one_after_another(4, {0, 2, 1});
}

TEST(ReconfigureFault, TheRankThatServesTheStoreDies) {
  const SharedScratchFolder folder;
  run_processes(3, [&](int rank) {
    unsetenv("LOCKSTEP_STORE");
    run_mortal([&] {
      const ProcessGroupGuard guard("", kMortalWorld);
      if (rank == 0) {
        for (int i = 0; i < 3; ++i) add_up();
        raise(SIGKILL);
      }
      add_up_and_go_on(2);
      EXPECT_EQ(get_rank(), rank - 1);
    });
  });
}

// In the first world, and in one that was formed anew.
TEST(ReconfigureFault, TheRankThatServesTheStoreDiesWhileAGroupIsMade) {
  for (const bool anew : {false, true}) {
    const SharedScratchFolder folder;
    run_processes(3, [&](int rank) {
      unsetenv("LOCKSTEP_STORE");
      run_mortal([&] {
        const ProcessGroupGuard guard("", kMortalWorld);
        if (anew) reconfigure();
        add_up();
        if (rank == 0) {
          std::this_thread::sleep_for(milliseconds(50));
          raise(SIGKILL);
        } else if (rank == 1) {
          expect_error(ErrorCode::kPeerFailed, {"new_group", "rank 0"}, [] { new_group({1, 2}); });
          std::ofstream(folder.path("seen"));
        } else {
          EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("seen")); }));
        }
        reconfigure();
        EXPECT_EQ(get_rank(), rank - 1);
        add_up();
      });
    });
  }
}

// At random moments, most of them in the middle of a reconfiguration.
TEST(ReconfigureFault, SeveralDieMeanwhile) {
  constexpr int kWorld = 5;
  for (unsigned seed = 0; seed < 3; ++seed) {
    run_processes(kWorld, [&](int rank) {
      run_mortal([&] {
        const ProcessGroupGuard guard("", kMortalWorld);
        std::mt19937 random(seed * kWorld + static_cast<unsigned>(rank));
        if (rank == static_cast<int>(seed) % kWorld) {
          for (int i = 0; i < 3; ++i) add_up();
          raise(SIGKILL);
        }
        std::thread killer;
        for (bool over = false; !over;) {
          try {
            while (get_world_size() > 2 || rank == 3 || rank == 4) add_up();
            for (int i = 0; i < 10; ++i) add_up();
            over = true;
          } catch (const std::exception& error) {
            EXPECT_TRUE(is_loss(error)) << error.what();
            if ((rank == 3 || rank == 4) && !killer.joinable()) {
              killer = std::thread([when = microseconds(random() % 8000)] {
                std::this_thread::sleep_for(when);
                raise(SIGKILL);
              });
            }
            try {
              reconfigure({.timeout = seconds(40)});
            } catch (const std::exception& again) {
              EXPECT_TRUE(is_loss(again)) << again.what();
            }
          }
        }
        if (killer.joinable()) killer.join();
      });
    });
  }
}

TEST(ReconfigureFault, WhoLivesAndDoesNotCallIsNamed) {
  const SharedScratchFolder folder;
  run_processes(3, [&](int rank) {
    const ProcessGroupGuard guard("", kMortalWorld);
    add_up();
    if (rank == 2) {
      EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("done")); }));
      return;
    }
    expect_error(ErrorCode::kTimeout, {"(rank 2 before) live(s) and did not call"},
                 [] { reconfigure({.timeout = milliseconds(1500)}); });
    if (rank == 0) std::ofstream(folder.path("done"));
  });
}

TEST(ReconfigureFault, AHandleOfADeadProcessIsAnErrorAtOnce) {
  run_processes(3, [](int rank) {
    run_mortal([rank] {
      const ProcessGroupGuard guard("", kMortalWorld);
      const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
      if (rank == 1) {
        add_up();
        raise(SIGKILL);
      }
      try {
        while (true) add_up();
      } catch (const std::exception& error) {
        EXPECT_TRUE(is_loss(error)) << error.what();
      }
      expect_error(ErrorCode::kPeerFailed, {"(rank 1 before) has ended"},
                   [&] { reconfigure({.handles = all, .uuid = 1}); });
      reconfigure({.handles = {all[0], all[2]}, .uuid = 2});
      add_up();
      EXPECT_EQ(get_world_size(), 2);
    });
  });
}

TEST(ReconfigureFault, AfterAnAbortAndAfterATimeout) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard guard("", kMortalWorld);
    if (rank == 1) {
      add_up();
      abort_process_group("the test breaks the world");
    }
    add_up_and_go_on(3);
    const torch::Tensor tensor = torch::ones({5});
    // The others may be in reconfigure() before this one's time is over.
    if (rank == 2) {
      EXPECT_ANY_THROW(all_reduce(tensor, {.timeout = milliseconds(100)}));
    }
    reconfigure();
    add_up();
  });
}

}  // namespace
}  // namespace lockstep::test
