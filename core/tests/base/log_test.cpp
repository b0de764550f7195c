#include "lockstep/base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/host.h"

namespace lockstep {
namespace {

// The level comes from the environment of the test program, where it is not set: warning.
TEST(Log, ShowsRankHostAndLevel) {
  testing::internal::CaptureStderr();
  log::warning("no {} expansion");
  log::set_rank(3);
  log::error("gone");
  log::info("below the level");
  log::debug("below the level");
  log::set_rank(-1);
  log::warning("alone again");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[lockstep " + host_name() + "] warning: no {} expansion\n" +
                                                        "[lockstep rank 3 " + host_name() + "] error: gone\n" +
                                                        "[lockstep " + host_name() + "] warning: alone again\n");
}

TEST(Log, WritesWholeLinesFromManyThreads) {
  const std::string text(2000, 'x');
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&text] {
      for (int line = 0; line < 50; ++line) log::warning(text);
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string written = testing::internal::GetCapturedStderr();
  const std::string line = "[lockstep " + host_name() + "] warning: " + text + "\n";
  ASSERT_EQ(written.size(), 200 * line.size());
  for (std::size_t at = 0; at < written.size(); at += line.size()) ASSERT_EQ(written.substr(at, line.size()), line);
}

}  // namespace
}  // namespace lockstep
