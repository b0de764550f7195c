// torchelastic's error files, and --dry-run.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/nodes.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

// As Python's @record writes it.
constexpr const char* kRecorded =
    "[ $RANK = 1 ] || exec sleep 600; printf '%s' '{\"message\": {\"message\": \"ValueError: too hot\", \"extraInfo\": "
    "{\"py_callstack\": \"Traceback: line 3\", \"timestamp\": \"1\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 4";

TEST(ErrorFilesMulti, AWorkersErrorIsReportedOnEveryNodeAndPassedOn) {
  const ScratchFolder folder;
  LocalNodes job("2", {"--log-dir", folder.path().string(), "--rdzv-id", "hot"});
  for (int node = 0; node < 2; ++node) {
    job.start(1, {"sh", "-c", kRecorded}, {"--node-rank", std::to_string(node)},
              {"TORCHELASTIC_ERROR_FILE=" + folder.path("reply" + std::to_string(node))});
  }
  // Both, before the report that they share is read.
  const Finished ends[] = {job.node(0).finish(), job.node(1).finish()};
  for (int node = 0; node < 2; ++node) {
    const Finished& end = ends[node];
    EXPECT_EQ(end.exit_code, 4);
    EXPECT_TRUE(contains(end.err, "\n  its error: ValueError: too hot\n")) << end.err;
    for (const std::string& path : {folder.path("reply" + std::to_string(node)), folder.path("hot/error.json")}) {
      const json report = json::parse(read_file(path), nullptr, false);
      ASSERT_TRUE(report.is_object()) << path;
      EXPECT_EQ(report["message"]["message"], "ValueError: too hot");
      EXPECT_EQ(report["message"]["errorCode"], 4);
      EXPECT_EQ(report["message"]["extraInfo"]["py_callstack"], "Traceback: line 3");
      EXPECT_EQ(report["message"]["extraInfo"]["rank"], 1);
      EXPECT_EQ(report["message"]["extraInfo"]["node"], 1);
    }
  }
}

// A worker may be a wrapper that starts the program elsewhere, and the program a launcher, which makes the file anew.
TEST(ErrorFilesMulti, TheProgramMayHaveOtherNamespacesAnotherUserOrANewFile) {
  const std::string write = "printf '%s' '{\"message\": \"ValueError: too hot\"}' > $TORCHELASTIC_ERROR_FILE; exit 4";
  for (const Words& wrapper :
       {Words{"unshare", "--pid", "--fork", "--mount-proc"}, Words{"setpriv", "--reuid", "12345", "--clear-groups"},
        Words{"env", "-C", "/", "sh", "-c", "rm $TORCHELASTIC_ERROR_FILE; exec \"$@\"", "sh"}}) {
    const Words command{"sh", "-c", write};
    const Finished end = run_program(Words{LOCKSTEP_PROGRAM, "run"} + wrapper + command);
    EXPECT_EQ(end.exit_code, 4) << wrapper.front() << ": " << end.err;
    EXPECT_TRUE(contains(end.err, "\n  its error: ValueError: too hot\n")) << wrapper.front() << ": " << end.err;
  }
}

TEST(ErrorFilesMulti, WithoutAPlaceInTmpdirTheyAreInMemory) {
  const Finished end = run_program(Words{"env", "TMPDIR=/no/such/folder"} + job(1, "echo $TORCHELASTIC_ERROR_FILE"));
  EXPECT_TRUE(end.out.starts_with("/dev/shm/lockstep_errors_")) << end.out;
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(end.out).parent_path()));
}

TEST(ErrorFilesFault, AKilledLauncherLeavesNone) {
  const ScratchFolder folder;
  Process launcher(Words{"env", "TMPDIR=" + folder.path().string()} + job(1, "echo started; exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return contains(launcher.out_so_far(), "started"); }));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  kill(launcher.pid(), SIGKILL);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
  EXPECT_TRUE(wait_for([&] { return std::filesystem::is_empty(folder.path()); }));
}

TEST(ErrorFilesMulti, WhatIsNoErrorFileIsLeftAlone) {
  for (const char* text : {"", "{", "[]", "{\"message\": 3}", "{\"message\": {\"message\": [], \"extraInfo\": 1}}"}) {
    const Finished end =
        run_program(job(1, "printf '%s' '" + std::string(text) + "' > $TORCHELASTIC_ERROR_FILE; echo sad >&2; exit 4"));
    EXPECT_EQ(end.exit_code, 4);
    EXPECT_FALSE(contains(end.err, "its error")) << end.err;
    EXPECT_TRUE(contains(end.err, "    sad")) << end.err;
  }
}

TEST(ErrorFilesMulti, ALaterRunWithTheSameNameIsToldApart) {
  const ScratchFolder folder;
  const Words options{"--log-dir", folder.path().string(), "--rdzv-id", "twice", "--redirects", "1"};
  EXPECT_EQ(run_program(job(1, "echo first; exit 4", options)).exit_code, 4);
  EXPECT_TRUE(std::filesystem::exists(folder.path("twice/error.json")));
  EXPECT_EQ(run_program(job(1, "echo second", options)).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("twice/error.json")));
  const std::string log = read_file(folder.path("twice/attempt_0/0/stdout.log"));
  EXPECT_TRUE(log.starts_with("first\n\nlockstep: another run begins here, ") && log.ends_with("\nsecond\n")) << log;
}

TEST(ErrorFilesFault, AReportThatCannotBeWrittenIsAWarning) {
  Process::Settings settings;
  settings.environment = {"TORCHELASTIC_ERROR_FILE=/dev/null/reply"};
  Process launcher(job(1, "exit 4"), settings);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_TRUE(contains(end.err, "cannot write the error file '/dev/null/reply'")) << end.err;
}

TEST(DryRunMulti, ThePlanIsPrintedAndNothingIsDone) {
  const ScratchFolder folder;
  const Finished end = run_program({LOCKSTEP_PROGRAM, "run", "--dry-run", "--nnodes", "2:3", "--rdzv-endpoint",
                                    "node7:77", "--nproc-per-node", "2", "touch", folder.path("touched")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* words :
       {"nodes: 2 to 3", "meet at: node7:77", "workers on this node: 2", "/touch\n", "local rank 1: "})
    EXPECT_TRUE(contains(end.out, words)) << end.out;
  EXPECT_FALSE(std::filesystem::exists(folder.path("touched")));
  const Finished missing = run_program({LOCKSTEP_PROGRAM, "run", "--dry-run", "./no_such_program"});
  EXPECT_TRUE(contains(missing.out, "there is no file './no_such_program'")) << missing.out;
}

}  // namespace
}  // namespace lockstep::test
