// How the output of workers comes to the launcher's streams and to files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "lockstep/base/fd.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

// One rank after the other: half a line that waits long for its rest ends where another rank's line begins.
TEST(RunMulti, LinesArePrefixedAndWhole) {
  const ScratchFolder folder;
  const std::string first = folder.path("first");
  const Finished end = run_job(2, "[ $RANK = 0 ] || while ! [ -e " + first +
                                      " ]; do sleep 0.01; done; printf 'half of %s, ' $RANK; "
                                      "printf 'and the rest\\n'; touch " +
                                      first + "; echo bad >&2");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: half of 0, and the rest", "[rank 1]: half of 1, and the rest"}));
  EXPECT_EQ(sorted_lines(end.err), (Lines{"[rank 0]: bad", "[rank 1]: bad"}));
}

TEST(RunMulti, OneWorkersOutputIsUntouched) {
  const Finished end = run_job(1, "printf 'a\\rb'; printf c >&2");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.out, "a\rb");
  EXPECT_EQ(end.err, "c");
}

TEST(RunMulti, LinesOfRanksThatWriteAtOnceAreNotMixed) {
  const Finished end = run_job(2, "printf 'half of %s, ' $RANK; printf 'and the rest\\n'; echo bad >&2");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(shown_by(end.out, 0), "half of 0, and the rest");
  EXPECT_EQ(shown_by(end.out, 1), "half of 1, and the rest");
  for (const std::string& line : sorted_lines(end.out)) EXPECT_TRUE(line.starts_with("[rank ")) << line;
  EXPECT_EQ(sorted_lines(end.err), (Lines{"[rank 0]: bad", "[rank 1]: bad"}));
}

TEST(RunMulti, ProgressLinesLeaveTheirLastStateInALog) {
  const Finished end = run_job(2, "printf '10%%\\r'; printf '100%%\\n'");
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: 100%", "[rank 1]: 100%"}));
}

TEST(RunMulti, NothingIsLostOfMuchOutput) {
  const Finished end = run_job(2, "seq 1 50000; printf tail");
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(shown_by(end.out, rank) == numbers(50000) + "tail") << "rank " << rank;
  }
  EXPECT_GE(std::count(end.out.begin(), end.out.end(), '\n'), 100002);
  EXPECT_TRUE(contains(end.out, "[rank 1]: tail\n"));
}

std::vector<std::string> printing_job(const std::string& how, const std::vector<std::string>& options) {
  std::vector<std::string> words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {LOCKSTEP_PRINTING_WORKER, how});
  return words;
}

TEST(RunMulti, LinesComeWhenTheyEnd) {
  const ScratchFolder folder;
  const std::string log = folder.path("j/attempt_0/0/stdout.log");
  for (const std::string option : {"--tee", "--redirects"}) {
    fs::remove_all(folder.path("j"));
    Process launcher(printing_job("wait", {"--log-dir", folder.path(), "--rdzv-id", "j", option, "0:1"}));
    const Lines expected = option == "--tee" ? Lines{"[rank 0]: the last line", "[rank 1]: the last line"}
                                             : Lines{"[rank 1]: the last line"};
    EXPECT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()) == expected; })) << launcher.out_so_far();
    EXPECT_TRUE(wait_for([&] { return read_file(log) == "the last line\n"; })) << read_file(log);
    kill(launcher.pid(), SIGKILL);
    launcher.finish();
    EXPECT_TRUE(launcher.wait_until_no_descendant());
  }
}

TEST(RunFault, AnAbortLosesNoLine) {
  const ScratchFolder folder;
  for (const std::string how : {"", "tee", "redirects"}) {
    std::vector<std::string> options{"--log-dir", folder.path(), "--rdzv-id", "j" + how};
    if (!how.empty()) options.insert(options.end(), {"--" + how, "1"});
    const Finished end = run_program(printing_job("abort", options));
    EXPECT_EQ(end.exit_code, 128 + SIGABRT);
    EXPECT_EQ(contains(end.out, "]: the last line\n"), how != "redirects") << end.out;
    std::string logs;
    for (const char* rank : {"0", "1"}) {
      logs += read_file(folder.path() / ("j" + how) / "attempt_0" / rank / "stdout.log");
    }
    EXPECT_EQ(contains(logs, "the last line\n"), !how.empty()) << logs;
  }
}

TEST(RunFault, KillOfTheLauncherEndsWorkersThatWrite) {
  const ScratchFolder folder;
  const Fd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  Process::Settings settings;
  settings.stdout_fd = nowhere.get();
  Process launcher(job(2, "yes & touch " + folder.path("writes") + "$RANK; wait"), settings);
  ASSERT_TRUE(wait_for([&] { return fs::exists(folder.path("writes0")) && fs::exists(folder.path("writes1")); }));
  kill(launcher.pid(), SIGKILL);
  launcher.finish();
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

constexpr const char* kShowTerminal = "if [ -t 1 ]; then echo $TERM ${COLORTERM-none}; else echo none; fi";

TEST(RunMulti, StandardOutputIsATerminalForProgramsThatBufferLines) {
  EXPECT_EQ(shown_by(run_job(2, kShowTerminal).out, 1), "dumb none");
  const ScratchFolder folder;
  folder.write("which.py", "import sys\nprint(sys.stdout.isatty())\n");
  const Finished end = run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", folder.path("which.py")});
  EXPECT_EQ(shown_by(end.out, 0), "False") << end.err;
}

TEST(RunMulti, WithoutPseudoTerminalsWorkersHavePipes) {
  const Finished end = run_program({"unshare", "--mount", "sh", "-c",
                                    "mount --bind /dev/null /dev/ptmx && LOCKSTEP_LOG_LEVEL=info exec \"$@\"", "sh",
                                    LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "sh", "-c", kShowTerminal});
  ASSERT_EQ(end.exit_code, 0) << "this test needs root (unshare --mount): " << end.err;
  EXPECT_EQ(shown_by(end.out, 1), "none") << end.err;
  EXPECT_TRUE(contains(end.err, "no pseudo-terminal can be made (")) << end.err;
}

// What a user sees on a terminal on which a shell script runs as several workers.
std::string shown_on_a_terminal(int workers, const std::string& script, const std::vector<std::string>& options = {}) {
  int ends[2];
  if (openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0) return "openpty: errno " + std::to_string(errno);
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  const Fd reader(ends[0]);
  Fd terminal(ends[1]);
  Process::Settings settings;
  settings.stdout_fd = settings.stderr_fd = terminal.get();
  std::vector<std::string> words{"env", "TERM=users"};
  const std::vector<std::string> run = job(workers, script, options);
  words.insert(words.end(), run.begin(), run.end());
  Process launcher(words, settings);
  terminal.reset();
  EXPECT_EQ(launcher.finish().exit_code, 0);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
  std::string shown;
  char buffer[4096];
  for (ssize_t size = 0; (size = read(reader.get(), buffer, sizeof buffer)) > 0;) shown.append(buffer, size);
  return shown;
}

TEST(RunMulti, OnlyAWorkerThatHasTheUsersTerminalDrawsOnIt) {
  const std::string script = "echo \"out $TERM\"; echo \"err $TERM\" >&2";
  const std::string alone = shown_on_a_terminal(1, script);
  EXPECT_TRUE(contains(alone, "out users") && contains(alone, "err users")) << alone;
  const std::string prefixed = shown_on_a_terminal(2, script);
  EXPECT_TRUE(contains(prefixed, "[rank 1]: out dumb") && contains(prefixed, "[rank 1]: err dumb")) << prefixed;
  const ScratchFolder folder;
  for (const std::string option : {"--tee", "--redirects"}) {
    const std::string shown = shown_on_a_terminal(1, script, {"--log-dir", folder.path(), option, "1"});
    EXPECT_TRUE(contains(shown, "err users")) << option << shown;
  }
}

TEST(RunMulti, TeeAndRedirectsWriteFiles) {
  const ScratchFolder folder;
  const Finished end = run_job(2, "echo out $RANK; echo err $RANK >&2",
                               {"--log-dir", folder.path(), "--rdzv-id", "j", "--tee", "1", "--redirects", "0:2"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: out 0", "[rank 1]: out 1"}));
  EXPECT_EQ(end.err, "[rank 1]: err 1\n");
  const fs::path attempt = folder.path() / "j" / "attempt_0";
  EXPECT_EQ(read_file(attempt / "0" / "stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(attempt / "1" / "stdout.log"), "out 1\n");
  EXPECT_EQ(read_file(attempt / "0" / "stderr.log"), "err 0\n");
  EXPECT_FALSE(fs::exists(attempt / "1" / "stderr.log"));
}

TEST(RunMulti, SlowReaderLosesNothing) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Process::Settings settings;
  settings.stdout_fd = ends[1];
  // More than the pipes and the launcher's queue hold, so the workers must wait for the reader.
  Process launcher(job(2, "head -c 4000000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo done $RANK"), settings);
  close(ends[1]);
  std::string text;
  char buffer[65536];
  for (ssize_t size = 0; (size = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, size);
  close(ends[0]);
  EXPECT_EQ(launcher.finish().exit_code, 0);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 8000000);
  EXPECT_TRUE(contains(text, "[rank 0]: done 0\n"));
  EXPECT_TRUE(contains(text, "[rank 1]: done 1\n"));
}

TEST(RunFault, AClosedReaderEndsTheWorkersAsWithoutALauncher) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Process::Settings settings;
  settings.stdout_fd = ends[1];
  Process launcher(job(2, "exec yes"), settings);
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGPIPE);
  EXPECT_TRUE(contains(end.err, "signal SIGPIPE")) << end.err;
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

TEST(RunFault, AClosedReaderIsAnErrorOfWritesWhereSigpipeIsIgnored) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Process::Settings settings;
  settings.stdout_fd = ends[1];
  Process launcher(job(2, "[ $RANK = 0 ] || exec sleep 600; trap '' PIPE; while echo y; do sleep 0.01; done; exit 9"),
                   settings);
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 9) << end.err;
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

}  // namespace
}  // namespace lockstep::test
