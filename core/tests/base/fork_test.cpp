#include "lockstep/base/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/host.h"
#include "base/no_forks.h"
#include "lockstep/base/fd.h"
#include "support/forked.h"
#include "support/process.h"

namespace lockstep {
namespace {

TEST(Fork, ObjectsKnowTheirProcess) {
  const Origin origin;
  EXPECT_TRUE(origin.is_this_process());
  const int seen = test::in_fork([&] {
    const Origin own;
    const int grandchild = test::in_fork([&] { return origin.is_this_process() || own.is_this_process() ? 1 : 0; });
    return !origin.is_this_process() && own.is_this_process() ? grandchild : 2;
  });
  EXPECT_EQ(seen, 0);
  EXPECT_TRUE(origin.is_this_process());
}

// A child of clone(), for which no fork handler runs.
TEST(Fork, ABareCloneKnowsItselfToo) {
  const Origin origin;
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) _exit(origin.is_this_process() ? 1 : 0);
  EXPECT_EQ(test::end_of(child), 0);
  EXPECT_TRUE(origin.is_this_process());
}

TEST(Fork, ObjectsAreNotDestroyedInForks) {
  struct Guard {
    explicit Guard(int* count) : count(count) {}
    ~Guard() { ++*count; }
    int* count;
  };
  int destroyed = 0;
  std::unique_ptr<Guard, LeakInForks> guard(new Guard(&destroyed));
  EXPECT_EQ(test::in_fork([&] {
              guard.reset();
              return destroyed;
            }),
            0);
  guard.reset();
  EXPECT_EQ(destroyed, 1);
}

TEST(Fork, EachProcessHasItsOwn) {
  static constinit OfProcess<int> numbers;
  int& mine = numbers.get();
  mine = 7;
  EXPECT_EQ(test::in_fork([&] {
              numbers.get() += 1;
              return numbers.get() == 1 && mine == 7 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(&numbers.get(), &mine);
  EXPECT_EQ(mine, 7);
}

TEST(Fork, HandlersRunInTheForkAndNotInItsOwn) {
  int calls = 0;
  const auto count = [](void* calls) { ++*static_cast<int*>(calls); };
  {
    const ForkHandler first(count, &calls);
    const auto second = std::make_unique<ForkHandler>(count, &calls);
    EXPECT_EQ(test::in_fork([&] { return calls; }), 2);
    EXPECT_EQ(test::in_fork([&] { return test::in_fork([&] { return calls; }); }), 2);
  }
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(test::in_fork([&] { return calls; }), 0);
}

// A reader notices the end of the parent while the child lives.
TEST(Fork, DescriptorsAreKeptFromForks) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd moved(ends[1]);
  moved.keep_from_forks();
  Fd write_end(std::move(moved));
  const pid_t child = test::fork_to([&] {
    const bool taken = fcntl(write_end.get(), F_GETFD) >= 0;  // the number is not free for others
    const bool lost = write(write_end.get(), "x", 1) == 1;
    write_end.reset();
    pause();
    return taken && lost ? 0 : 1;
  });
  write_end.reset();
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0);
  kill(child, SIGKILL);
  EXPECT_EQ(test::end_of(child), 128 + SIGKILL);
}

TEST(Fork, DescriptorsAreKeptFromForksWhereNoneIsFree) {
  const int ended = test::in_fork([] {
    std::array<int, 2> own{};
    if (pipe2(own.data(), O_CLOEXEC) != 0) return 2;
    const Fd reader(own[0]);
    Fd writer(own[1]);
    writer.keep_from_forks();
    while (dup(reader.get()) >= 0) {
    }
    const pid_t child = test::fork_to([] {
      pause();
      return 0;
    });
    writer.reset();
    char byte = 0;
    const bool told = read(reader.get(), &byte, 1) == 0;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return told ? 0 : 1;
  });
  EXPECT_EQ(ended, 0);
}

TEST(Fork, AThreadThatKeepsForksOffForLongHoldsUpNoOtherThread) {
  std::atomic<int> passed{0};
  std::vector<std::jthread> others;
  {
    const NoForks for_long;
    for (int i = 0; i < 40; ++i) {
      others.emplace_back([&] {
        const NoForks briefly;
        ++passed;
      });
    }
    EXPECT_TRUE(test::wait_for([&] { return passed == 40; }));
  }
}

// Whether a thread of this process waits for something.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'S';
}

// As a look-up of a name that takes long. Each new thread begins at the next of 16 locks; with three threads in a round
// each lock is once that of the long call, also the last one.
TEST(Fork, AForkThatWaitsForALongCallHoldsUpNoBriefCall) {
  for (int i = 0; i < 16 && !testing::Test::HasFailure(); ++i) {
    std::promise<void> held;
    std::promise<void> over;
    std::atomic<pid_t> forking{0};
    std::atomic<int> passed{0};
    std::jthread holder([&] {
      const NoForks for_long(NoForks::Calls::kLong);
      held.set_value();
      over.get_future().wait();
    });
    held.get_future().wait();
    std::jthread forker([&] {
      forking = gettid();
      EXPECT_EQ(test::in_fork([] { return 0; }), 0);
    });
    EXPECT_TRUE(test::wait_for([&] { return forking != 0 && sleeps(forking); }));
    const auto call_briefly = [&] {
      const NoForks briefly;
      ++passed;
    };
    std::jthread second(call_briefly);
    std::jthread third(call_briefly);
    EXPECT_TRUE(test::wait_for([&] { return passed == 2; }));
    over.set_value();
  }
}

// The look-up of a name takes locks of the C library.
TEST(Fork, ForksBesideLookUpsLookNamesUp) {
  const auto look_up = [] { return find_addresses("localhost", "80", SOCK_STREAM, AI_ADDRCONFIG) != nullptr; };
  std::atomic<bool> stop{false};
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      while (!stop) EXPECT_TRUE(look_up());
    });
  }
  for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i)
    EXPECT_EQ(test::in_fork([&] { return look_up() ? 0 : 1; }), 0);
  stop = true;
}

TEST(Fork, LocksThatAreHeldDuringForksAreFreeInThem) {
  static auto& mutex = *new std::mutex;
  hold_during_forks(mutex);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      const std::lock_guard lock(mutex);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(test::in_fork([] {
                const std::lock_guard lock(mutex);
                return 0;
              }),
              0);
  }
  stop = true;
  other.join();
}

}  // namespace
}  // namespace lockstep
