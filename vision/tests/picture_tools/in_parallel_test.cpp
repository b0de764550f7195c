#include "picture_tools/in_parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace lockstep::data
