// Workers of a restart that were loaded ahead.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/nodes.h"
#include "lockstep/base/fd.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

class StandbyFault : public testing::Test {
 protected:
  Words command(const Words& options) const {
    return Words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2"} + options + Words{program_, folder_.path().native()};
  }

  // The line that a rank has written in a start, counted from 1.
  json report(int rank, std::size_t start) const {
    std::istringstream lines(read_file(folder_.path(std::to_string(rank))));
    std::string line;
    for (std::size_t i = 0; i < start; ++i) {
      if (!std::getline(lines, line) || lines.eof()) return {};
    }
    return json::parse(line);
  }
  bool await_start(std::size_t start, int ranks = 2) const {
    return wait_for([&] {
      for (int rank = 0; rank < ranks; ++rank) {
        if (report(rank, start).is_null()) return false;
      }
      return true;
    });
  }
  static void kill_rank(const json& report) { kill(report["pid"].get<pid_t>(), SIGKILL); }

  static json status(pid_t launcher) {
    const Finished end = run_program({LOCKSTEP_PROGRAM, "status", std::to_string(launcher), "--json"});
    return end.exit_code == 0 ? json::parse(end.out) : json{{"standby", json::array()}};
  }
  // The processes that wait.
  static std::set<pid_t> ready(pid_t launcher) {
    const json shown = status(launcher);
    std::set<pid_t> pids;
    for (const json& process : shown["standby"]) {
      if (process["ready"] == true) pids.insert(process["pid"].get<pid_t>());
    }
    return pids;
  }
  static std::set<pid_t> await_ready(pid_t launcher, std::size_t count) {
    std::set<pid_t> found;
    EXPECT_TRUE(wait_for([&] { return (found = ready(launcher)).size() == count; })) << found.size();
    return found;
  }
  std::set<pid_t> pids_of(std::size_t start, int ranks = 2) const {
    std::set<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) pids.insert(report(rank, start)["pid"].get<pid_t>());
    return pids;
  }

  // The file is replaced while processes with the old one wait: they do not become workers.
  void expect_new_processes_once_replaced(const Process& job, const std::string& file) const {
    ASSERT_TRUE(await_start(1)) << job.err_so_far();
    const std::set<pid_t> waiting = await_ready(job.pid(), 2);
    std::filesystem::copy_file(LOCKSTEP_STANDBY_WORKER, file + ".new");
    std::filesystem::rename(file + ".new", file);
    kill_rank(report(0, 1));
    ASSERT_TRUE(await_start(2)) << job.err_so_far();
    for (const pid_t pid : pids_of(2)) EXPECT_FALSE(waiting.contains(pid));
  }

  const ScratchFolder folder_;
  std::string program_ = LOCKSTEP_STANDBY_WORKER;
};

TEST_F(StandbyFault, ARestartMakesWorkersOfTheProcessesThatWait) {
  Process job(command(
      {"--standby", "0", "--max-restarts", "2", "--tee", "1", "--log-dir", folder_.path("logs"), "--rdzv-id", "x"}));
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  const std::set<pid_t> waiting = await_ready(job.pid(), 2);
  EXPECT_TRUE(report(0, 2).is_null()) << "main() of a process that waits has run";
  EXPECT_EQ(status(job.pid())["workers"].size(), 2U);
  for (const pid_t pid : waiting) EXPECT_EQ(read_file("/proc/" + std::to_string(pid) + "/oom_score_adj"), "1000\n");
  kill_rank(report(1, 1));
  ASSERT_TRUE(await_start(2)) << job.err_so_far();
  EXPECT_EQ(pids_of(2), waiting);
  for (int rank = 0; rank < 2; ++rank) {
    const json before = report(rank, 1);
    const json after = report(rank, 2);
    EXPECT_EQ(after["start"], "1");
    EXPECT_EQ(after["restarts"], "1");
    EXPECT_EQ(after["ranks"], 2);
    EXPECT_EQ(after["local_rank"], rank);
    EXPECT_NE(after["store"], before["store"]);
    EXPECT_EQ(after["store_at_start"], after["store"]) << "static objects were made too early";
    EXPECT_EQ(after["standby"], "");
    EXPECT_NE(after["error_file"], "");
    for (const char* same : {"descriptors", "name", "nice", "oom_score", "stdin"}) {
      EXPECT_EQ(after[same], before[same]) << same;
    }
  }
  EXPECT_TRUE(wait_for([&] { return contains(job.out_so_far(), "[rank 1]: start 1\n"); })) << job.out_so_far();
  EXPECT_TRUE(wait_for([&] { return read_file(folder_.path("logs/x/attempt_1/0/stdout.log")) == "start 1\n"; }));
  for (const pid_t pid : await_ready(job.pid(), 2)) kill(pid, SIGSTOP);
  EXPECT_EQ(status(job.pid())["restarts"], 1);
  kill_rank(report(0, 2));
  ASSERT_TRUE(await_start(3)) << job.err_so_far();
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, NothingWaitsForARestartThatCannotCome) {
  Process job(command({"--standby", "0", "--max-restarts", "1"}));
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  await_ready(job.pid(), 2);
  kill_rank(report(0, 1));
  ASSERT_TRUE(await_start(2)) << job.err_so_far();
  EXPECT_TRUE(status(job.pid())["standby"].empty());
  kill_rank(report(0, 2));
  EXPECT_EQ(job.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, NothingWaitsWithoutStandbyOrWithoutRestarts) {
  std::size_t start = 0;
  for (const Words& options :
       {Words{"--standby", "off", "--max-restarts", "1"}, Words{"--standby", "0", "--max-restarts", "0"}}) {
    Process job(command(options));
    ASSERT_TRUE(await_start(++start)) << job.err_so_far();
    json shown = status(job.pid());
    EXPECT_EQ(shown["workers"].size(), 2U);
    EXPECT_TRUE(shown["standby"].empty());
    kill(job.pid(), SIGTERM);
    EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
    EXPECT_TRUE(job.wait_until_no_descendant());
  }
}

pid_t parent_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  return std::stoi(stat.substr(stat.rfind(')') + 4));
}

// Whether the process is dead and its parent has taken notice. A number may belong to another process meanwhile.
bool is_gone(const Fd& pidfd) {
  return syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) != 0;
}

TEST_F(StandbyFault, WhatWaitsAndDiesIsReplacedAtTheRestart) {
  Process job(command({"--standby", "0", "--max-restarts", "2"}));
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  for (const bool supervisor : {false, true}) {
    const std::size_t start = supervisor ? 2 : 1;
    const std::set<pid_t> waiting = await_ready(job.pid(), 2);
    std::vector<Fd> processes;
    for (const pid_t pid : waiting) processes.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    const pid_t victim = *waiting.begin();
    kill(supervisor ? parent_of(victim) : victim, SIGKILL);
    ASSERT_TRUE(wait_for([&] { return ready(job.pid()).size() == (supervisor ? 0U : 1U); }));
    EXPECT_FALSE(job.ended());
    kill_rank(report(0, start));
    ASSERT_TRUE(await_start(start + 1)) << job.err_so_far();
    for (const pid_t pid : pids_of(start + 1)) EXPECT_FALSE(waiting.contains(pid));
    for (const Fd& process : processes) {
      EXPECT_TRUE(wait_for([&] { return is_gone(process); })) << (supervisor ? "supervisor" : "process");
    }
  }
  kill(job.pid(), SIGTERM);
  job.finish();
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, ASupervisorThatIsStoppedGoesOnAtTheRestart) {
  Process job(command({"--standby", "0", "--max-restarts", "1"}));
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  const std::set<pid_t> waiting = await_ready(job.pid(), 2);
  kill(parent_of(*waiting.begin()), SIGSTOP);
  kill_rank(report(0, 1));
  ASSERT_TRUE(await_start(2)) << job.err_so_far();
  EXPECT_EQ(pids_of(2), waiting);
  kill_rank(report(0, 2));
  EXPECT_EQ(job.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, ALauncherThatIsKilledLeavesNothing) {
  Process job(command({"--standby", "0", "--max-restarts", "1"}));
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  await_ready(job.pid(), 2);
  kill(job.pid(), SIGKILL);
  job.finish();
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, AProgramThatWasReplacedIsStartedAgain) {
  program_ = folder_.path("program");
  std::filesystem::copy_file(LOCKSTEP_STANDBY_WORKER, program_);
  const Process job(command({"--standby", "0", "--max-restarts", "1"}));
  expect_new_processes_once_replaced(job, program_);
}

// `lockstep train` becomes another program, whose file counts.
TEST_F(StandbyFault, AProgramThatAnotherBecomesIsStartedAgainWhenItWasReplaced) {
  const std::string bin = folder_.path("bin");
  const std::string trainer = bin + "/lockstep-train";
  std::filesystem::create_directory(bin);
  std::filesystem::copy_file(LOCKSTEP_PROGRAM, bin + "/lockstep");
  std::filesystem::copy_file(LOCKSTEP_STANDBY_WORKER, trainer);
  Process job(Words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "--standby", "0", "--max-restarts", "1",
                    bin + "/lockstep", "train", folder_.path().native()});
  expect_new_processes_once_replaced(job, trainer);
}

// A script may do anything before it becomes a program with the hook.
TEST_F(StandbyFault, AProgramWithoutTheHookIsStartedOnceForEachAttempt) {
  const std::string script = "echo x >> " + folder_.path("starts") + "; exec \"$0\" \"$1\"";
  Process job(Words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "--standby", "0", "--max-restarts", "1", "sh",
                    "-c", script, program_, folder_.path().native()});
  ASSERT_TRUE(await_start(1)) << job.err_so_far();
  kill_rank(report(0, 1));
  ASSERT_TRUE(await_start(2)) << job.err_so_far();
  EXPECT_TRUE(status(job.pid())["standby"].empty());
  EXPECT_EQ(read_file(folder_.path("starts")), "x\nx\nx\nx\n");
}

// A variable that a process only inherited means nothing.
TEST_F(StandbyFault, AForeignValueOfTheVariableIsNoReasonToWait) {
  for (const std::string value : {"", "x", "0:1", "1:99999999999", "-1:0", "99:5"}) {
    Process::Settings settings;
    settings.environment = {"LOCKSTEP_STANDBY=" + value, "RANK=7", "WORLD_SIZE=8", "MASTER_ADDR=127.0.0.1"};
    const ScratchFolder folder;
    Process program({program_, folder.path().native()}, settings);
    EXPECT_TRUE(wait_for([&] { return !read_file(folder.path("7")).empty(); })) << value;
  }
}

TEST_F(StandbyFault, AllNodesOfAJobMakeWorkersOfTheProcessesThatWait) {
  LocalNodes job("2", {"--standby", "0", "--max-restarts", "1"});
  for (int node = 0; node < 2; ++node) {
    job.start(node + 1, {program_, folder_.path().native()}, {"--node-rank", std::to_string(node)});
  }
  ASSERT_TRUE(await_start(1, 3)) << job.node(0).err_so_far() << job.node(1).err_so_far();
  std::set<pid_t> waiting = await_ready(job.node(0).pid(), 1);
  waiting.merge(await_ready(job.node(1).pid(), 2));
  kill_rank(report(2, 1));
  ASSERT_TRUE(await_start(2, 3)) << job.node(0).err_so_far() << job.node(1).err_so_far();
  EXPECT_EQ(pids_of(2, 3), waiting);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(report(rank, 2)["ranks"], 3);
  kill(job.node(0).pid(), SIGTERM);
  for (int node = 0; node < 2; ++node) {
    job.node(node).finish();
    EXPECT_TRUE(job.node(node).wait_until_no_descendant());
  }
}

// `status` of a job of --hosts, whose launchers have the processes that wait. ssh's place is taken by a shell.
TEST_F(StandbyFault, AJobOverHostsShowsWhatWaitsForItsNodes) {
  folder_.write("ssh", "#!/bin/sh\nsh -c \"$2\"\n");
  std::filesystem::permissions(folder_.path("ssh"), std::filesystem::perms::owner_all);
  Process job({LOCKSTEP_PROGRAM, "run", "--hosts", "localhost:1,near:2", "--ssh", folder_.path("ssh"), "--standby", "0",
               "--max-restarts", "1", program_, folder_.path().native()});
  ASSERT_TRUE(await_start(1, 3)) << job.err_so_far();
  await_ready(job.pid(), 3);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST_F(StandbyFault, ANodeThatJoinsMakesTheWorldLarger) {
  LocalNodes job("1:2", {"--standby", "0", "--rdzv-conf", "last_call_timeout=0"});
  job.start(1, {program_, folder_.path().native()});
  ASSERT_TRUE(await_start(1, 1)) << job.node(0).err_so_far();
  const std::set<pid_t> waiting = await_ready(job.node(0).pid(), 1);
  job.start(1, {program_, folder_.path().native()});
  ASSERT_TRUE(wait_for([&] { return !report(0, 2).is_null() && !report(1, 1).is_null(); }))
      << job.node(0).err_so_far() << job.node(1).err_so_far();
  EXPECT_EQ(report(0, 2)["pid"], *waiting.begin());
  EXPECT_EQ(report(0, 2)["ranks"], 2);
  EXPECT_EQ(report(0, 2)["start"], "1");
  EXPECT_EQ(report(0, 2)["restarts"], "0");
  const json shown = status(job.node(0).pid());
  EXPECT_EQ(shown["workers"].size(), 1U);
  EXPECT_EQ(shown["world_size"], 2) << "not the one that was to be expected when the process was loaded";
  EXPECT_EQ(shown["restarts"], 0);
}

}  // namespace
}  // namespace lockstep::test
