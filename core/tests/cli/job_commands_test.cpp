// `lockstep ps`, `status` and `stop`, with real jobs.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cli/jobs.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class JobsMulti : public testing::Test {
 protected:
  // Tests run at the same time: no name, cut by a letter too, is the beginning of another.
  JobsMulti() : name_("jobs-" + std::to_string(getpid()) + "-test") {}

  std::vector<std::string> named(const std::string& name, const std::string& script) {
    return {LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "--rdzv-id=" + name, "sh", "-c", script};
  }
  static Finished lockstep(const std::vector<std::string>& words) {
    std::vector<std::string> command{LOCKSTEP_PROGRAM};
    command.insert(command.end(), words.begin(), words.end());
    return run_program(command);
  }
  static bool has_workers(const std::string& job, std::size_t count) {
    const Finished end = lockstep({"status", job, "--json"});
    return end.exit_code == 0 && nlohmann::json::parse(end.out)["workers"].size() == count;
  }

  const std::string name_;
};

TEST_F(JobsMulti, AJobIsListedShownAndStopped) {
  Process job(named(name_, "exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return has_workers(name_, 2); }));
  EXPECT_TRUE(contains(lockstep({"ps"}).out, name_));
  EXPECT_TRUE(contains(lockstep({"ps", "--quiet"}).out, name_ + "\n"));
  EXPECT_TRUE(contains(lockstep({"ps", "--json"}).out, name_));
  const auto shown = nlohmann::json::parse(lockstep({"status", std::to_string(job.pid()), "--json"}).out);
  EXPECT_EQ(shown["job"], name_);
  EXPECT_EQ(shown["world_size"], 2);
  EXPECT_EQ(shown["workers"][1]["rank"], 1);
  EXPECT_TRUE(contains(lockstep({"status", name_}).out, "2 of 2 workers are on this machine"));
  const Finished stopped = lockstep({"stop", name_});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_EQ(stopped.out, "job " + name_ + " has ended\n");
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
  EXPECT_EQ(lockstep({"stop", name_}).exit_code, 1);
}

TEST_F(JobsMulti, WorkersThatDoNotListenAreKilledWithNow) {
  Process job(named(name_, "trap '' TERM; echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(wait_for([&] {
    const std::string out = job.out_so_far();
    return contains(out, "[rank 0]: ready") && contains(out, "[rank 1]: ready");
  }));
  ASSERT_TRUE(wait_for([&] { return has_workers(name_, 2); }));
  const Finished waited = lockstep({"stop", name_, "--timeout", "0.1"});
  EXPECT_EQ(waited.exit_code, 1);
  EXPECT_TRUE(contains(waited.err, "was asked to end and still runs")) << waited.err;
  EXPECT_EQ(lockstep({"stop", "--now", name_}).exit_code, 0);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

// A name that looks like an option.
TEST_F(JobsMulti, WhatFollowsTwoDashesIsTheJob) {
  Process job(named("-" + name_, "exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return has_workers(std::to_string(job.pid()), 2); }));
  EXPECT_TRUE(contains(lockstep({"status", "--", "-" + name_}).out, "2 of 2 workers are on this machine"));
  EXPECT_EQ(lockstep({"ps", "--", "more"}).exit_code, 2);
  EXPECT_EQ(lockstep({"stop", "--", "-" + name_}).exit_code, 0);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
}

// Workers that need long for their end, and a launcher that somebody has stopped.
TEST_F(JobsMulti, NowDoesNotWaitForTheGraceTime) {
  Process job({LOCKSTEP_PROGRAM, "run", "--rdzv-id", name_, "--grace", "3600", "sh", "-c",
               "trap '' TERM; echo ready; while :; do sleep 1; done"});
  ASSERT_TRUE(wait_for([&] { return contains(job.out_so_far(), "ready"); }));
  kill(job.pid(), SIGSTOP);
  ASSERT_TRUE(wait_for([&] { return is_stopped(job.pid()); }));
  const Finished stopped = lockstep({"stop", "--now", name_});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(JobsMulti, UnknownCommandsAndEmptyValuesAreNamed) {
  EXPECT_TRUE(contains(lockstep({"stpo"}).err, "there is no command 'stpo'; the nearest known one is 'stop'"));
  const Finished empty = lockstep({"stop", "--timeout=", name_});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_EQ(
      empty.err.find("lockstep: --timeout: expected a time such as 30s or 5min, from 0 to 1000000 seconds, found ''"),
      0U)
      << empty.err;
  EXPECT_EQ(lockstep({"stop", "--timeout", "nan", name_}).exit_code, 2);
  EXPECT_EQ(lockstep({"ps", "--json="}).exit_code, 2);
}

TEST_F(JobsMulti, TwoJobsWithOneNameAreToldApartByProcess) {
  Process one(named(name_, "exec sleep 600"));
  Process two(named(name_, "exec sleep 600"));
  ASSERT_TRUE(
      wait_for([&] { return has_workers(std::to_string(one.pid()), 2) && has_workers(std::to_string(two.pid()), 2); }));
  const Finished both = lockstep({"stop", name_});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_TRUE(contains(both.err, "is the name of 2 jobs")) << both.err;
  EXPECT_TRUE(contains(both.err, std::to_string(two.pid()))) << both.err;
  EXPECT_EQ(lockstep({"stop", std::to_string(two.pid())}).exit_code, 0);
  EXPECT_FALSE(one.ended());
  EXPECT_EQ(lockstep({"stop", name_.substr(0, name_.size() - 1)}).exit_code, 0) << "the beginning of a name";
}

// One job, although each node has a launcher. ssh's place is taken by a shell.
TEST_F(JobsMulti, AJobOverHostsIsOneJob) {
  const ScratchFolder folder;
  const std::string ssh = folder.path("ssh");
  folder.write("ssh", "#!/bin/sh\nsh -c \"$2\"\n");
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  Process job({LOCKSTEP_PROGRAM, "run", "--hosts", "localhost:2,near:1", "--ssh", ssh, "--rdzv-id", name_, "sh", "-c",
               "exec sleep 600"});
  ASSERT_TRUE(wait_for([&] { return has_workers(name_, 3); })) << job.err_so_far();
  const std::string all = lockstep({"ps"}).out;
  EXPECT_EQ(all.find(name_), all.rfind("\n" + name_) + 1) << all;
  const std::string shown = lockstep({"status", name_}).out;
  EXPECT_TRUE(contains(shown, "3 of 3 workers are on this machine")) << shown;
  EXPECT_TRUE(contains(shown, "  node: process ")) << shown;
  EXPECT_EQ(lockstep({"stop", name_}).exit_code, 0);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

// A worker may start a job of its own, also in a job of --hosts, whose launchers are not listed.
TEST_F(JobsMulti, AJobInAJobOverHostsIsListedOnce) {
  const ScratchFolder folder;
  const std::string ssh = folder.path("ssh");
  folder.write("ssh", "#!/bin/sh\nsh -c \"$2\"\n");
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  const std::string inner = "inner-" + name_;
  Process job({LOCKSTEP_PROGRAM, "run", "--hosts", "localhost:1,near:1", "--ssh", ssh, "--rdzv-id", name_,
               LOCKSTEP_PROGRAM, "run", "--rdzv-id", inner, "sleep", "600"});
  const std::multiset<std::string> expected{name_, inner, inner};
  std::multiset<std::string> names;
  const auto all_run = [&] {
    names.clear();
    for (const auto& one : nlohmann::json::parse(lockstep({"ps", "--json"}).out)) {
      const std::string name = one["job"];
      if (contains(name, name_) && !one["workers"].empty()) names.insert(name);
    }
    return names == expected;
  };
  ASSERT_TRUE(wait_for(all_run)) << job.err_so_far();
  for (const auto& one : nlohmann::json::parse(lockstep({"ps", "--json"}).out)) EXPECT_GT(one["pid"], 0) << one;
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(JobsMulti, AJobOverOtherHostsHasItsName) {
  const ScratchFolder folder;
  folder.write("ssh", "#!/bin/sh\nexec sleep 600\n");
  std::filesystem::permissions(folder.path("ssh"), std::filesystem::perms::owner_all);
  Process job({LOCKSTEP_PROGRAM, "run", "--hosts", "far,farther", "--local-addr", "127.0.0.1", "--ssh",
               folder.path("ssh"), "--rdzv-id", name_, "--grace", "0", "true"});
  ASSERT_TRUE(wait_for([&] { return contains(lockstep({"ps", "--quiet"}).out, name_ + "\n"); })) << job.err_so_far();
  const std::string shown = lockstep({"status", name_}).out;
  EXPECT_TRUE(contains(shown, "no worker is on this machine")) << shown;
  EXPECT_EQ(lockstep({"stop", "--now", name_}).exit_code, 0);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(JobsMulti, AKilledJobLeavesNothingInTheList) {
  Process job(named(name_, "exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return has_workers(name_, 2); }));
  kill(job.pid(), SIGKILL);
  job.finish();
  EXPECT_TRUE(job.wait_until_no_descendant());
  EXPECT_FALSE(contains(lockstep({"ps", "--quiet"}).out, name_));
  EXPECT_EQ(lockstep({"status", name_}).exit_code, 1);
}

TEST_F(JobsMulti, AProcessThatOnlyHasTheNumberIsNoJob) {
  const Finished end = lockstep({"stop", std::to_string(getpid())});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "no job ")) << end.err;
}

TEST(CliMulti, OutputThatADiskSwallowsIsAFailure) {
  const Finished end = run_program({"sh", "-c", LOCKSTEP_PROGRAM " run --print-config > /dev/full"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "cannot write the output: No space left on device")) << end.err;
}

}  // namespace
}  // namespace lockstep::test
