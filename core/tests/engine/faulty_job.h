// Ranks that are killed or frozen on purpose. The test is the parent; it starts itself once per rank.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"
#include "support/process.h"
#include "support/process_ranks.h"

namespace lockstep::test {

inline constexpr const char* kFaultyRole = "LOCKSTEP_TEST_FAULTY_RANK";

inline bool is_rank() {
  return std::getenv(kFaultyRole) != nullptr;
}

[[noreturn]] inline void wait_for_ever() {
  for (;;) pause();
}

inline void say_ready() {
  std::puts("ready");
  std::fflush(stdout);
}

// The ranks of the current test as processes, over a store of the parent's.
class FaultyJob {
 public:
  explicit FaultyJob(int world) : before_(Leftovers::now()) {
    comm::TcpStoreServerOptions options;
    options.job_key = "secret of the test";
    server_ = comm::TcpStoreServer::start(std::move(options)).value();
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    for (int rank = 0; rank < world; ++rank) {
      Process::Settings settings;
      settings.environment = {
          std::string(kFaultyRole) + "=1", "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world),
          "LOCKSTEP_STORE=127.0.0.1:" + std::to_string(server_->port()), "LOCKSTEP_JOB_KEY=secret of the test"};
      const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
      ranks_.push_back(std::make_unique<Process>(std::vector<std::string>{"/proc/self/exe", filter}, settings));
    }
  }
  ~FaultyJob() {
    ranks_.clear();
    server_.reset();
    expect_nothing_left(before_);
  }
  FaultyJob(const FaultyJob&) = delete;
  FaultyJob& operator=(const FaultyJob&) = delete;

  bool all_ready() const {
    return wait_for([&] {
      return std::all_of(ranks_.begin(), ranks_.end(),
                         [](const auto& rank) { return rank->out_so_far().find("ready\n") != std::string::npos; });
    });
  }
  pid_t pid(int rank) const { return ranks_[rank]->pid(); }
  void send_signal(int rank, int signal) const { kill(pid(rank), signal); }
  // The limit is much longer than a survivor needs, and much shorter than the deadlines of the operations.
  void expect_survivors_end(int victim) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (rank == victim) continue;
      const Finished end = ranks_[rank]->finish(std::chrono::seconds(20));
      EXPECT_EQ(end.exit_code, 0) << "rank " << rank << ":\n" << end.out << end.err;
    }
  }
  // Freezes a rank until all others have ended.
  void expect_survivors_end_beside_frozen(int victim) {
    ASSERT_TRUE(all_ready());
    send_signal(victim, SIGSTOP);
    expect_survivors_end(victim);
    send_signal(victim, SIGKILL);
    expect_victim_killed(victim);
  }
  void expect_victim_killed(int victim) {
    EXPECT_EQ(ranks_[victim]->finish(std::chrono::seconds(20)).exit_code, 128 + SIGKILL);
  }

 private:
  Leftovers before_;
  std::unique_ptr<comm::TcpStoreServer> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

inline void expect_names(const Status& status, ErrorCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

}  // namespace lockstep::test
