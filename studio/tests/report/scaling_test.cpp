// The scaling table: its arithmetic, its file, and `lockstep scaling` with real processes.
#include "lockstep/report/scaling.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lockstep/base/fd.h"
#include "report/contains.h"
#include "report/scaling/runs.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

using test::ScratchFolder;

// The published times of a ResNet on one, two and four GPUs.
const std::vector<Measurement> kPublished = {{4, 37.8, 0.94, kNan}, {1, 128.84, 0.95, 0.9}, {2, 66.5, 0.94, 0.8}};

TEST(ScalingTable, IsThePublishedOne) {
  const ScalingTable table = scaling_table(kPublished, ScalingKind::kStrong, {"./train"});
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_EQ(to_text(table),
            "processes  seconds per epoch  speed-up  efficiency  device use  accuracy\n"
            "        1             128.84     1.00x      100.0%       90.0%     95.0%\n"
            "        2              66.50     1.94x       96.9%       80.0%     94.0%\n"
            "        4              37.80     3.41x       85.2%           -     94.0%\n");
}

TEST(ScalingTable, TakesTheMedianAndShowsTheSpread) {
  const ScalingTable table = scaling_table(
      {{1, 10.0, 0.9, 0.75}, {2, 6.0, 0.9, kNan}, {1, 12.0, 0.92, 0.8}, {1, 11.0, 0.905, 0.7}, {2, 5.0, 0.9001, kNan}},
      ScalingKind::kStrong, {});
  EXPECT_EQ(table.rows[0].runs, 3);
  EXPECT_EQ(table.rows[0].seconds.median, 11.0);
  EXPECT_EQ(table.rows[1].seconds.low, 5.0);
  EXPECT_EQ(table.rows[1].speed_up, 2.0);
  const std::string text = to_text(table);
  EXPECT_TRUE(contains(text, "  11.00 (10.00 to 12.00)  ")) << text;
  EXPECT_TRUE(contains(text, "  75.0% (70.0% to 80.0%)  90.5% (90.0% to 92.0%)\n")) << text;
  EXPECT_TRUE(contains(text, "-                   90.0%\n")) << "alike to the digits that are shown: " << text;
}

// With fixed work for each process, equal times are a speed-up of n.
TEST(ScalingTable, WeakScalingCountsWork) {
  const ScalingTable table =
      scaling_table({{2, 10.0, kNan, kNan}, {4, 10.0, kNan, kNan}, {8, 20.0, kNan, kNan}}, ScalingKind::kWeak, {});
  EXPECT_EQ(table.rows[0].speed_up, 2.0);
  EXPECT_EQ(table.rows[1].speed_up, 4.0);
  EXPECT_EQ(table.rows[2].speed_up, 4.0);
  EXPECT_EQ(table.rows[2].efficiency, 0.5);
}

TEST(ScalingTable, IsReadBackAsItWasWritten) {
  const ScratchFolder folder;
  const ScalingTable table = scaling_table(kPublished, ScalingKind::kWeak, {"./train", "--name", "a b"});
  ASSERT_TRUE(write_scaling(table, folder.path()).ok());
  const Result<ScalingTable> back = read_scaling(folder.path());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().command, table.command);
  EXPECT_EQ(back.value().kind, ScalingKind::kWeak);
  EXPECT_EQ(to_text(back.value()), to_text(table));
  EXPECT_EQ(read_scaling(folder.path("none")).status().code(), ErrorCode::kNotFound);
  folder.write("scaling.json", R"({"kind":"weak","command":[],"rows":[{"processes":"two"}]})");
  EXPECT_EQ(read_scaling(folder.path()).status().code(), ErrorCode::kCorrupt);
  folder.write("scaling.json", R"({"kind":"weak","command":[)" + std::string(100'000, '['));
  EXPECT_EQ(read_scaling(folder.path()).status().code(), ErrorCode::kCorrupt);
}

TEST(ScalingTable, HasNoDeviceUseOfARunThatDoesNotTellItsComputing) {
  const ScratchFolder folder;
  folder.write("run.jsonl", R"({"event":"epoch","epoch":0,"seconds":2}
{"event":"times","epoch":0,"ranks":[{"rank":0,"seconds":{"input":1,"compute and communication":3}}]}
)");
  const Measurement told = measurement_of(folder.path());
  EXPECT_EQ(told.seconds_per_epoch, 2.0);
  EXPECT_TRUE(std::isnan(told.device_use));
}

TEST(ResultLine, IsTakenFromAnyLine) {
  Measurement told{1, kNan, kNan, kNan};
  take_result_line("nothing here", told);
  take_result_line("lockstep-result: {broken", told);
  take_result_line("lockstep-result: [1]", told);
  EXPECT_TRUE(std::isnan(told.seconds_per_epoch));
  take_result_line(R"([rank 0] lockstep-result: {"seconds_per_epoch": 1.5, "accuracy": "high"})", told);
  EXPECT_EQ(told.seconds_per_epoch, 1.5);
  EXPECT_TRUE(std::isnan(told.accuracy));
  take_result_line(R"(lockstep-result: {"accuracy": 0.25, "accuracy": 0.5})", told);
  EXPECT_EQ(told.accuracy, 0.5) << "the last of a name counts, as in Python";
}

// A program whose epochs take 8 seconds divided by the number of processes, as it says.
const std::string kLog = R"(test $RANK = 0 || exit 0; s=$((8 / WORLD_SIZE)); cd $LOCKSTEP_RUN_FOLDER;
echo '{"event":"start","format":1,"host":"node7","versions":{"torch":"2.15.0"},"time":1000000000}' > run.jsonl;
for e in 0 1 2; do echo '{"event":"epoch","epoch":'$e',"seconds":'$s',"samples":1}'; done >> run.jsonl;
echo '{"event":"evaluation","epoch":2,"scalars":{"accuracy":0.5}}' >> run.jsonl;
echo '{"event":"times","epoch":2,"ranks":[{"rank":0,"seconds":{"compute":3,"input":1}}]}' >> run.jsonl)";

// As if a rank of `lockstep run` with these arguments, "attempt_0/3", had printed that an epoch takes so many seconds.
void print_result(const std::vector<std::string>& arguments, const char* rank, int seconds) {
  const std::filesystem::path folder = std::filesystem::path(arguments.at(7)) / "id" / rank;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "stdout.log") << "begin\nlockstep-result: {\"seconds_per_epoch\": " << seconds << "}\n";
}

// Stands in the place of `lockstep run` with these arguments: rank 0 prints that an epoch takes two seconds.
int launch(const std::vector<std::string>& arguments) {
  print_result(arguments, "attempt_0/0", 2);
  return 0;
}

int processes_in(const std::vector<std::string>& arguments) {
  return std::stoi(arguments.at(3));
}

TEST(ScalingRuns, TakesTheResultOfRankZeroAfterTheLastRestart) {
  const ScratchFolder folder;
  const ScalingOptions options{.processes = {2},
                               .folder = folder.path("table"),
                               .launch =
                                   [](const auto& arguments) {
                                     print_result(arguments, "attempt_0/0", 5);
                                     print_result(arguments, "attempt_9/0", 6);
                                     print_result(arguments, "attempt_10/0", 2);
                                     print_result(arguments, "attempt_10/1", 7);
                                     return 0;
                                   },
                               .command = {"./train"}};
  const ScalingOutcome outcome = measure_scaling(options, [](const std::string&) {});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.table.rows.at(0).seconds.median, 2.0);
}

TEST(ScalingRuns, KeepsTheTableOfTheRunsBeforeTheOneThatFails) {
  const ScratchFolder folder;
  ScalingOptions options{
      .processes = {2, 1, 4},
      .runs = 3,
      .folder = folder.path("table"),
      .launch = [](const auto& arguments) { return processes_in(arguments) == 4 ? 1 : launch(arguments); },
      .command = {"./train"}};
  const ScalingOutcome failed = measure_scaling(options, [](const std::string&) {});
  EXPECT_EQ(failed.status.code(), ErrorCode::kInternal);
  EXPECT_TRUE(contains(failed.status.message(), "a run with 4 processes ended with 1"));
  ASSERT_EQ(failed.table.rows.size(), 2U);
  EXPECT_EQ(failed.table.rows[1].processes, 2);
  EXPECT_EQ(missing_runs(options, failed.table),
            "2 of 3 with 1 process, 2 of 3 with 2 processes, 3 of 3 with 4 processes");
  options.processes = {1, 2};
  const ScalingOutcome complete = measure_scaling(options, [](const std::string&) {});
  EXPECT_TRUE(complete.status.ok()) << complete.status.message();
  EXPECT_EQ(missing_runs(options, complete.table), "");
}

// The program does not tell that it was asked to end: it says that it was fast.
TEST(ScalingRuns, KeepsTheTableOfTheRunsBeforeTheOneThatIsInterrupted) {
  const ScratchFolder folder;
  const ScalingOptions options{.processes = {1, 2},
                               .runs = 2,
                               .folder = folder.path("table"),
                               .launch =
                                   [](const auto& arguments) {
                                     launch(arguments);
                                     return processes_in(arguments) == 1 ? 0 : 128 + SIGTERM;
                                   },
                               .command = {"./train"}};
  const ScalingOutcome outcome = measure_scaling(options, [](const std::string&) {});
  EXPECT_EQ(outcome.signal, SIGTERM);
  EXPECT_EQ(outcome.status.code(), ErrorCode::kAborted);
  EXPECT_EQ(outcome.status.message(), "a run with 2 processes was ended by SIGTERM");
  EXPECT_EQ(missing_runs(options, outcome.table), "1 of 2 with 1 process, 2 of 2 with 2 processes");
}

TEST(ScalingMulti, WritesTheTableOfTheRunsBeforeTheOneThatFails) {
  const ScratchFolder folder;
  const test::Finished finished =
      test::run_program({LOCKSTEP_PROGRAM, "scaling", "--procs", "1,2", "--runs", "2", "-o", folder.path("table"), "--",
                         "/bin/sh", "-c", "test $WORLD_SIZE = 1 || exit 3; " + kLog});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_TRUE(contains(finished.out, "median of up to 2 runs")) << finished.out;
  EXPECT_TRUE(contains(finished.out, "        1               8.00     1.00x")) << finished.out;
  EXPECT_TRUE(contains(finished.out, folder.path("table/procs-1/run-1/report.html"))) << finished.out;
  EXPECT_TRUE(contains(finished.err, "the table lacks these runs: 1 of 2 with 1 process, 2 of 2 with 2 processes\n"))
      << finished.err;
  const Result<ScalingTable> written = read_scaling(folder.path("table"));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().rows.size(), 1U);
  EXPECT_TRUE(contains(test::read_file(folder.path("table/report.html")), "Strong scaling"));
}

TEST(ScalingMulti, GoesOnWhenNobodyReadsItsOutput) {
  const ScratchFolder folder;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd unread(ends[1]);
  ::close(ends[0]);
  test::Process scaling({LOCKSTEP_PROGRAM, "scaling", "--procs", "1,2", "-o", folder.path("table"), "--", "/bin/sh",
                         "-c", "echo for people; " + kLog},
                        {.stdout_fd = unread.get()});
  const test::Finished finished = scaling.finish();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const Result<ScalingTable> written = read_scaling(folder.path("table"));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().rows.size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(folder.path("table/report.html")));
}

TEST(ScalingRuns, SharesTheCoresAmongTheMostProcesses) {
  const ScratchFolder folder;
  ::unsetenv("OMP_NUM_THREADS");
  std::string said;
  const ScalingOutcome outcome = measure_scaling(
      {.processes = {1, 3}, .folder = folder.path("table"), .launch = launch, .command = {"./train"}, .cores = 7},
      [&](const std::string& line) { said += line + "\n"; });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_TRUE(contains(said, "== run 1 of 1, 1 process, OMP_NUM_THREADS=2\n")) << said;
  EXPECT_TRUE(contains(said, "== run 1 of 1, 3 processes, OMP_NUM_THREADS=2\n")) << said;
}

// The machine may have many more cores than the batch system or the container allows.
TEST(ScalingMulti, CountsTheCoresThatItMayUse) {
  const ScratchFolder folder;
  const test::Finished finished = test::run_program(
      {"env", "-u", "OMP_NUM_THREADS", "taskset", "-c", std::to_string(::sched_getcpu()), LOCKSTEP_PROGRAM, "scaling",
       "--procs", "1", "-o", folder.path("table"), "--", "/bin/sh", "-c", kLog});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.err, "== run 1 of 1, 1 process, OMP_NUM_THREADS=1\n")) << finished.err;
}

// Programs expect to be ended by SIGPIPE, and would otherwise write on for nobody.
TEST(ScalingMulti, ProgramsDoNotIgnoreSigpipe) {
  const ScratchFolder folder;
  const test::Finished finished =
      test::run_program({LOCKSTEP_PROGRAM, "scaling", "--procs", "1", "-o", folder.path("table"), "--", "/bin/sh", "-c",
                         "grep SigIgn /proc/self/status > " + folder.path("ignored") + "; " + kLog});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::string line = test::read_file(folder.path("ignored"));  // "SigIgn:" and a mask in hexadecimal digits
  ASSERT_TRUE(line.starts_with("SigIgn:")) << line;
  EXPECT_EQ(std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1, 0U) << line;
}

TEST(ScalingMulti, RunsAProgramAndMakesTheTable) {
  const ScratchFolder folder;
  test::Process scaling({LOCKSTEP_PROGRAM, "scaling", "--procs", "1,2", "--runs", "2", "-o", folder.path("table"), "--",
                         "/bin/sh", "-c", kLog, "--", "an argument"});
  const test::Finished finished = scaling.finish();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "strong scaling, median of 2 runs")) << finished.out;
  EXPECT_TRUE(contains(finished.out, "        2               4.00     2.00x      100.0%       75.0%     50.0%\n"))
      << finished.out;
  EXPECT_TRUE(contains(finished.err, "== run 1 of 2, 1 process, OMP_NUM_THREADS="));
  EXPECT_LT(finished.err.find("== run 1 of 2, 2 processes"), finished.err.find("== run 2 of 2, 1 process"));
  const std::string page = test::read_file(folder.path("table/report.html"));
  EXPECT_TRUE(contains(page, "Strong scaling"));
  // Where, when and with what, so that the table can be compared with another one.
  EXPECT_TRUE(contains(page, "measured on node7, 2001-09-09 01:46 UTC")) << page;
  EXPECT_TRUE(contains(page, "<dt>torch</dt><dd>2.15.0</dd>")) << page;
  EXPECT_TRUE(contains(page, "<h3>Command</h3><pre>/bin/sh -c ")) << page;
  EXPECT_TRUE(contains(finished.err, "== took "));
  EXPECT_TRUE(contains(finished.out, "report: " + folder.path("table/report.html"))) << finished.out;
  EXPECT_TRUE(contains(finished.out, "        " + folder.path("table/procs-2/run-2/report.html") + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path("table/procs-2/run-2/run.jsonl")));
  EXPECT_TRUE(contains(test::read_file(folder.path("table/procs-2/run-2/report.html")), "Strong scaling"));
  EXPECT_TRUE(scaling.wait_until_no_descendant());
}

TEST(ScalingMulti, CountsTheWorkOfWeakScaling) {
  const ScratchFolder folder;
  const test::Finished finished = test::run_program({LOCKSTEP_PROGRAM, "scaling", "--weak", "--procs", "1,2", "-o",
                                                     folder.path("table"), "--", "/bin/sh", "-c", kLog});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "weak scaling, median of 1 run (")) << finished.out;
  // Twice the work in half the time.
  EXPECT_TRUE(contains(finished.out, "        2               4.00     4.00x      200.0%")) << finished.out;
  const Result<ScalingTable> written = read_scaling(folder.path("table"));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().kind, ScalingKind::kWeak);
}

TEST(ScalingMulti, SaysWhatIsWrong) {
  const ScratchFolder folder;
  const auto scaling = [&](std::vector<std::string> options, std::vector<std::string> program) {
    std::vector<std::string> command = {LOCKSTEP_PROGRAM, "scaling", "-o", folder.path("table")};
    command.insert(command.end(), options.begin(), options.end());
    command.emplace_back("--");
    command.insert(command.end(), program.begin(), program.end());
    return test::run_program(command);
  };
  const test::Finished silent = scaling({"--procs", "2"}, {"true"});
  EXPECT_EQ(silent.exit_code, 1);
  EXPECT_TRUE(contains(silent.err, "the run with 2 processes reported no seconds per epoch; expected epochs in"))
      << silent.err;
  const test::Finished failing = scaling({"--procs", "1"}, {"/bin/sh", "-c", "exit 3"});
  EXPECT_EQ(failing.exit_code, 1);
  EXPECT_TRUE(contains(failing.err, "a run with 1 process ended with ")) << failing.err;
  EXPECT_EQ(scaling({"--procs", "two"}, {"true"}).exit_code, 2);
  EXPECT_EQ(scaling({"--procs", "0"}, {"true"}).exit_code, 2);
  EXPECT_EQ(scaling({"--weak", "--strong"}, {"true"}).exit_code, 2);
  EXPECT_EQ(scaling({}, {}).exit_code, 2);
  const test::Finished line =
      scaling({"--procs", "1"}, {"/bin/sh", "-c", "echo 'lockstep-result: {\"seconds_per_epoch\": 2.5}'"});
  EXPECT_TRUE(contains(line.out, "2.50     1.00x")) << line.out << line.err;
}

TEST(ScalingFault, WritesTheTableOfTheRunsBeforeItIsInterrupted) {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) {
    const ScratchFolder folder;
    const auto before = ::signal(signal, SIG_DFL);
    test::Process scaling({LOCKSTEP_PROGRAM, "scaling", "--procs", "1,2", "-o", folder.path("table"), "--", "/bin/sh",
                           "-c", "test $WORLD_SIZE = 1 || { echo begun; exec sleep 1000; }; " + kLog});
    ::signal(signal, before);
    EXPECT_TRUE(test::wait_for([&] { return contains(scaling.out_so_far(), "begun"); }));
    ::kill(scaling.pid(), signal);
    const test::Finished finished = scaling.finish();
    EXPECT_EQ(finished.exit_code, 128 + signal) << finished.err;
    EXPECT_TRUE(contains(finished.out, "        1               8.00     1.00x")) << finished.out;
    EXPECT_TRUE(contains(finished.err, "a run with 2 processes was ended by SIG")) << finished.err;
    EXPECT_TRUE(contains(finished.err, "the table lacks these runs: 1 of 1 with 2 processes\n")) << finished.err;
    const Result<ScalingTable> written = read_scaling(folder.path("table"));
    ASSERT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(written.value().rows.size(), 1U);
    EXPECT_TRUE(scaling.wait_until_no_descendant());
  }
}

// Killed half way, it leaves nothing running.
TEST(ScalingFault, EndsItsRunWhenItIsKilled) {
  const ScratchFolder folder;
  for (const int signal : {SIGKILL, SIGTERM}) {
    test::Process scaling({LOCKSTEP_PROGRAM, "scaling", "--procs", "2", "-o", folder.path("table"), "--", "/bin/sh",
                           "-c", "echo begun; sleep 1000"});
    EXPECT_TRUE(test::wait_for([&] { return contains(scaling.out_so_far(), "begun"); }));
    ::kill(scaling.pid(), signal);
    scaling.finish();
    EXPECT_TRUE(scaling.wait_until_no_descendant(std::chrono::seconds(60)));
  }
}

TEST(ReportCommand, MakesThePage) {
  const ScratchFolder folder;
  folder.write("run/run.jsonl", "{\"event\":\"start\",\"name\":\"a run\"}\n");
  const test::Finished made =
      test::run_program({LOCKSTEP_PROGRAM, "report", folder.path("run"), "-o", folder.path("page.html")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.out, folder.path("page.html") + "\n");
  EXPECT_TRUE(contains(test::read_file(folder.path("page.html")), "<h1>a run</h1>"));
  const test::Finished none = test::run_program({LOCKSTEP_PROGRAM, "report", "--", folder.path("none")});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_TRUE(contains(none.err, folder.path("none") + ": expected the folder of a run, with its log run.jsonl"))
      << none.err;
  EXPECT_EQ(test::run_program({LOCKSTEP_PROGRAM, "report"}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::report
