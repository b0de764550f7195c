#include "picture_tools/in_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "support/thread_limit.h"

namespace lockstep::data {
namespace {

TEST(InParallel, CallsTheBodyOnceForEach) {
  for (const int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> calls(40);
    in_parallel(3, 40, threads, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
    for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], i < 3 ? 0 : 1);
  }
}

TEST(InParallel, TheCallerGetsAnExceptionAndTheRestIsLeft) {
  for (const int threads : {1, 2, 5}) {
    std::atomic<int> calls{0};
    const auto body = [&](std::int64_t /*i*/) {
      ++calls;
      throw std::runtime_error("no");
    };
    EXPECT_THROW(in_parallel(0, 1000, threads, body), std::runtime_error);
    EXPECT_GE(calls, 1);
    EXPECT_LE(calls, threads);
  }
}

// In a process that exits with 0 if the sum is right.
[[noreturn]] void add_up(int threads_left) {
  test::refuse_threads(threads_left);
  std::atomic<std::int64_t> sum = 0;
  in_parallel(0, 1000, 4, [&](std::int64_t i) { sum += i; });
  std::_Exit(sum == 999 * 1000 / 2 ? 0 : 1);
}

TEST(InParallelFault, DoesWithFewerThreadsWhereTheSystemRefusesThem) {
  for (const int left : {0, 1}) EXPECT_EXIT(add_up(left), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::data
