// `lockstep inspect` on running jobs and on dumps, and the dumps that the launcher writes. The workers record without
// LibTorch (programs/recording_worker.cpp), so a job takes a tenth of a second.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class InspectMulti : public testing::Test {
 protected:
  InspectMulti() : name_("inspect-" + std::to_string(getpid()) + "-test") {}

  std::vector<std::string> job(const std::string& name, const std::string& what,
                               const std::vector<std::string>& options = {}) const {
    std::vector<std::string> command{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "3", "--rdzv-id=" + name};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {LOCKSTEP_RECORDING_WORKER, what});
    return command;
  }
  static bool has_recorded(const Process& process, int ranks = 3) {
    const std::string out = process.out_so_far();
    int found = 0;
    for (std::size_t at = out.find("has recorded"); at != std::string::npos; at = out.find("has recorded", at + 1))
      ++found;
    return found == ranks;
  }
  static Finished inspect(const std::vector<std::string>& words) {
    std::vector<std::string> command{LOCKSTEP_PROGRAM, "inspect"};
    command.insert(command.end(), words.begin(), words.end());
    return run_program(command);
  }

  static nlohmann::json workers_of(const std::string& name) {
    return nlohmann::json::parse(run_program({LOCKSTEP_PROGRAM, "status", name, "--json"}).out)["workers"];
  }
  // A rank's line in the table that `inspect` prints.
  static std::string row_of(const std::string& out, int rank) {
    const std::size_t at = out.find("\n    " + std::to_string(rank) + " ");
    EXPECT_NE(at, std::string::npos) << out;
    return at == std::string::npos ? "" : out.substr(at + 1, out.find('\n', at + 1) - at - 1);
  }
  static int pid_of(const std::string& out, int rank) { return std::stoi(row_of(out, rank).substr(6)); }
  static std::string recorder_of(int pid) {
    const std::string variables = read_file("/proc/" + std::to_string(pid) + "/environ");
    const std::string name = "LOCKSTEP_RECORDER=";
    return variables.c_str() + variables.find(name) + name.size();
  }

  const std::string name_;
  const ScratchFolder folder_;
};

TEST_F(InspectMulti, AHungJobIsExplainedAndLeavesNothing) {
  Process process(job(name_, "wait"));
  ASSERT_TRUE(wait_for([&] { return has_recorded(process); }));
  ASSERT_TRUE(wait_for([&] { return contains(inspect({name_}).out, "What is wrong"); }));
  const Finished end = inspect({name_});
  EXPECT_TRUE(contains(end.out, "Group 'world': ranks 0, 1 wait in all_reduce #5 (1024 float32) for ")) << end.out;
  EXPECT_TRUE(contains(end.out, "; rank 2 (pid ")) << end.out;
  EXPECT_TRUE(contains(end.out,
                       "has not called it: its last collective of 'world' was all_reduce #4; its process sleeps since"))
      << end.out;
  EXPECT_EQ(inspect({name_, "--trace", folder_.path("trace.json"), "--pytorch", folder_.path("fr")}).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_.path("trace.json")))["traceEvents"].size(), 3U * 3 + 2 * 14);
  EXPECT_TRUE(std::filesystem::exists(folder_.path("fr/rank_2")));
  // Somebody stops a rank.
  kill(pid_of(end.out, 2), SIGSTOP);
  EXPECT_TRUE(wait_for([&] { return contains(inspect({name_}).out, "its process is stopped"); }));
  const std::filesystem::path file = recorder_of(pid_of(end.out, 0));
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "stop", "--now", name_}).exit_code, 0);
  process.finish();
  EXPECT_TRUE(process.wait_until_no_descendant());
  EXPECT_EQ(inspect({name_}).exit_code, 1);
  EXPECT_EQ(file.string().find("/dev/shm/"), 0U) << file;
  EXPECT_FALSE(std::filesystem::exists(file.parent_path()));
}

TEST_F(InspectMulti, TwoJobsAreKeptApart) {
  Process one(job(name_ + "-a", "wait"));
  Process two(job(name_ + "-b", "wait"));
  ASSERT_TRUE(wait_for([&] { return has_recorded(one) && has_recorded(two); }));
  const std::string out = inspect({name_ + "-b"}).out;
  const auto workers = workers_of(name_ + "-b");
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(pid_of(out, rank), workers[static_cast<std::size_t>(rank)]["pid"].get<int>()) << out;
  EXPECT_EQ(inspect({name_}).exit_code, 2);                       // the beginning of both
  EXPECT_EQ(inspect({name_ + "-a", name_ + "-b"}).exit_code, 2);  // not one job
}

TEST_F(InspectMulti, AFailureLeavesDumpsWhereTheOptionSays) {
  Process process(job(name_, "kill", {"--dump-dir", folder_.path("dumps"), "--grace", "0"}));
  const Finished end = process.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  const std::string dumps = folder_.path("dumps/" + name_ + "/attempt_0");
  EXPECT_TRUE(contains(end.err, "what the ranks called last is in " + dumps)) << end.err;
  const Finished said = inspect({dumps});
  EXPECT_TRUE(contains(said.out, "has ended: signal SIGKILL (9); its last operation was all_reduce #4")) << said.out;
  EXPECT_TRUE(contains(said.out, "ranks 0, 1 wait in all_reduce #5")) << said.out;
  EXPECT_EQ(inspect({dumps + "/rank_0.flight", dumps + "/rank_1.flight"}).exit_code, 0);
  // One that was cut short.
  std::filesystem::resize_file(dumps + "/rank_1.flight", 5000);
  const Finished cut = inspect({dumps});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_TRUE(contains(cut.err, "rank_1.flight: expected a recorder of")) << cut.err;
  EXPECT_TRUE(process.wait_until_no_descendant());
}

TEST_F(InspectMulti, EveryDeathThatAJobSurvivesHasDumpsOfItsOwn) {
  Process process(job(name_, "wait", {"--dump-dir", folder_.path("dumps"), "--min-workers", "1"}));
  ASSERT_TRUE(wait_for([&] { return has_recorded(process); }));
  const std::string out = inspect({name_}).out;
  const std::string dumps = folder_.path("dumps/" + name_ + "/attempt_0");
  for (const int rank : {2, 1}) {
    kill(pid_of(out, rank), SIGKILL);
    const std::string place = dumps + "/death_" + std::to_string(3 - rank) + ";";
    ASSERT_TRUE(wait_for([&] { return contains(process.err_so_far(), "what the ranks called last is in " + place); }));
  }
  const auto ended = [&](const std::string& path) {
    const std::string said = inspect({path}).out;
    std::vector<bool> all;
    for (const int rank : {0, 1, 2}) all.push_back(contains(row_of(said, rank), "ended: signal SIGKILL"));
    return all;
  };
  EXPECT_EQ(ended(dumps + "/death_1"), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(ended(dumps + "/death_2"), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(ended(dumps), (std::vector<bool>{false, true, true}));  // the last dump of each process
}

TEST_F(InspectMulti, WithoutTheOptionNothingIsWritten) {
  const Finished end = Process(job(name_, "kill", {"--grace", "0"})).finish();
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_FALSE(contains(end.err, "what the ranks called last")) << end.err;
}

TEST_F(InspectMulti, ASignalToTheLauncherAsksForDumpsAndEndsNoWorker) {
  Process process(job(name_, "wait", {"--dump-dir=" + folder_.path("dumps")}));
  ASSERT_TRUE(wait_for([&] { return has_recorded(process); }));
  kill(process.pid(), SIGUSR1);
  ASSERT_TRUE(wait_for([&] { return contains(process.err_so_far(), "what the ranks called last is in"); }));
  EXPECT_TRUE(contains(inspect({folder_.path("dumps")}).out, "ranks 0, 1 wait in all_reduce #5"));
  EXPECT_EQ(workers_of(name_).size(), 3U);
}

// Before the death, while the launcher writes the dumps of it, and while it ends the others.
TEST_F(InspectMulti, SignalsInTheMiddleOfACrashChangeNothing) {
  Process process(job(name_, "kill", {"--dump-dir", folder_.path("dumps"), "--grace", "0"}));
  ASSERT_TRUE(wait_for([&] { return has_recorded(process); }));
  ASSERT_TRUE(wait_for([&] {
    kill(process.pid(), SIGUSR1);
    return process.ended();
  }));
  const Finished end = process.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
  EXPECT_TRUE(contains(end.err, "rank 2 failed first: signal SIGKILL (9)")) << end.err;
  EXPECT_TRUE(process.wait_until_no_descendant());
  const std::string dumps = folder_.path("dumps/" + name_ + "/attempt_0");
  const Finished said = inspect({dumps});
  EXPECT_TRUE(contains(said.out, "has ended: signal SIGKILL (9); its last operation was all_reduce #4")) << said.out;
  EXPECT_TRUE(contains(said.out, "ranks 0, 1 wait in all_reduce #5")) << said.out;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dumps), {}), 3) << "files are left";
}

TEST_F(InspectMulti, TheSignalGoesOnToWorkersThatTakeIt) {
  Process process(job(name_, "catch", {"--dump-dir=" + folder_.path("dumps")}));
  ASSERT_TRUE(wait_for([&] { return has_recorded(process); }));
  kill(process.pid(), SIGUSR1);
  EXPECT_TRUE(wait_for([&] {
    const std::string out = process.out_so_far();
    return contains(out, "[rank 0]: got its signal") && contains(out, "[rank 2]: got its signal");
  }));
}

TEST_F(InspectMulti, WrongWordsAreNamed) {
  EXPECT_EQ(inspect({}).exit_code, 2);
  EXPECT_EQ(inspect({"no-such-job"}).exit_code, 1);
  EXPECT_TRUE(contains(inspect({folder_.path()}).err, "no dump (*.flight) is in"));
}

}  // namespace
}  // namespace lockstep::test
