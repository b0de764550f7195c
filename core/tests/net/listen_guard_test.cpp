// A library's sockets, prepared in the moment before they listen.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <thread>
#include <vector>

#include "lockstep/base/fd.h"
#include "net/port_guard.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

Fd new_socket() {
  return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

bool listens(int socket) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

class ListenGuard : public testing::Test {
 protected:
  void TearDown() override { test::expect_nothing_left(before_); }

 private:
  const test::Leftovers before_ = test::Leftovers::now();
};

TEST_F(ListenGuard, PreparesEverySocketBeforeItListensInTheCallersThread) {
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<Fd> sockets;
  std::vector<int> prepared, expected;
  std::atomic<std::size_t> count{0};
  const auto watched = run_watching_listen(
      [&] {
        EXPECT_NE(std::this_thread::get_id(), caller);
        for (int i = 0; i < 5; ++i) {
          sockets.push_back(new_socket());
          EXPECT_EQ(::listen(sockets.back().get(), 1), 0);
          EXPECT_EQ(count, sockets.size()) << "it did not wait";
          EXPECT_TRUE(listens(sockets.back().get()));
        }
      },
      [&](int socket) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_FALSE(listens(socket));
        prepared.push_back(socket);
        ++count;
      });
  ASSERT_TRUE(watched.ok()) << watched.status().message();
  EXPECT_TRUE(watched.value()) << "the kernel has no seccomp user notification, or this process is watched already";
  for (const Fd& socket : sockets) expected.push_back(socket.get());
  EXPECT_EQ(prepared, expected);
}

TEST_F(ListenGuard, LeavesOtherThreadsAndLaterCallsAlone) {
  int prepared = 0;
  const auto count = [&](int) { ++prepared; };
  for (int round = 1; round <= 3; ++round) {
    const Fd outside = new_socket(), inside = new_socket();
    ASSERT_TRUE(run_watching_listen([&] { EXPECT_EQ(::listen(inside.get(), 1), 0); }, count).value());
    EXPECT_EQ(::listen(outside.get(), 1), 0);
    EXPECT_EQ(prepared, round);
  }
  const Fd from_outside = new_socket();
  ASSERT_TRUE(run_watching_listen(
                  [&] {
                    // The kernel's own answer comes back. NOLINTNEXTLINE(clang-analyzer-unix.StdCLibraryFunctions)
                    EXPECT_EQ(::listen(-1, 1), -1);
                    EXPECT_EQ(errno, EBADF);
                  },
                  count)
                  .value());
  EXPECT_EQ(prepared, 4);
}

TEST_F(ListenGuard, PreparesTheSocketsOfThreadsThatTheWorkStarts) {
  std::vector<int> prepared;
  const Fd socket = new_socket();
  ASSERT_TRUE(run_watching_listen([&] { std::thread([&] { EXPECT_EQ(::listen(socket.get(), 1), 0); }).join(); },
                                  [&](int which) { prepared.push_back(which); })
                  .value());
  EXPECT_EQ(prepared, std::vector<int>{socket.get()});
}

TEST_F(ListenGuard, RefusesToListenToThreadsThatTheWorkHasLeftBehind) {
  std::promise<void> over;
  std::thread left;
  ASSERT_TRUE(run_watching_listen(
                  [&] {
                    left = std::thread([&] {
                      over.get_future().wait();
                      const Fd socket = new_socket();
                      EXPECT_EQ(::listen(socket.get(), 1), -1);
                      EXPECT_EQ(errno, ENOSYS);
                    });
                  },
                  [](int) { ADD_FAILURE() << "nobody listened"; })
                  .value());
  over.set_value();
  left.join();
}

}  // namespace
}  // namespace lockstep::comm
