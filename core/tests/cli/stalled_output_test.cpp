// The launcher works on when its output stalls or fails: it handles signals, failures, restarts and the end of the job.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/jobs.h"
#include "lockstep/base/fd.h"
#include "support/full_disk.h"
#include "support/process.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

std::string read_to_the_end(int fd) {
  std::string text;
  char buffer[65536];
  for (ssize_t size = 0; (size = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, size);
  return text;
}

// An output whose reader does not read.
struct Stalled {
  Fd ours;
  Fd launchers;
};

enum class Kind { kUnreadTerminal, kStoppedTerminal, kUnreadPipe };

Stalled stalled_output(Kind kind) {
  int ends[2];
  if (kind == Kind::kUnreadPipe) {
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  } else {
    EXPECT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
    for (const int fd : ends) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  if (kind == Kind::kStoppedTerminal) {
    EXPECT_EQ(tcflow(ends[1], TCOOFF), 0);  // like Ctrl-S
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

class StalledOutputFault : public testing::TestWithParam<Kind> {
 protected:
  // Starts a launcher whose stdout and stderr are both stalled.
  std::unique_ptr<Process> start(const std::vector<std::string>& command) {
    output_ = stalled_output(GetParam());
    Process::Settings settings;
    settings.stdout_fd = output_.launchers.get();
    settings.stderr_fd = output_.launchers.get();
    auto process = std::make_unique<Process>(command, settings);
    output_.launchers.reset();
    return process;
  }

  Stalled output_;
  const ScratchFolder folder_;
};

// Writes without end. The pipe to the launcher fills and stays full while kStalled waits.
const std::string kFlood = "yes 'a line of output that is not read' & ";
const std::string kStalled = "sleep 1; ";

TEST_P(StalledOutputFault, SignalsAreHandled) {
  const auto launcher =
      start(job(2, kFlood + kStalled + "touch " + folder_.path("stalled") + "$RANK; wait", {"--grace", "0.5"}));
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(folder_.path("stalled1")); }));
  kill(launcher->pid(), SIGTERM);
  EXPECT_EQ(launcher->finish(std::chrono::seconds(20)).exit_code, 128 + SIGTERM);
  EXPECT_TRUE(launcher->wait_until_no_descendant());
}

TEST_P(StalledOutputFault, FailuresAndRestartsAreHandled) {
  const auto launcher = start(job(
      2, kFlood + kStalled + "touch " + folder_.path("try") + "$LOCKSTEP_RESTART_COUNT; [ $RANK = 1 ] && exit 7; wait",
      {"--grace", "0.5", "--max-restarts", "1"}));
  EXPECT_EQ(launcher->finish(std::chrono::seconds(30)).exit_code, 7);
  EXPECT_TRUE(std::filesystem::exists(folder_.path("try1")));
  EXPECT_TRUE(launcher->wait_until_no_descendant());
}

TEST_P(StalledOutputFault, ErrorsAtTheStartAreHandled) {
  const auto launcher = start({LOCKSTEP_PROGRAM, "run", "./no_such_program"});
  EXPECT_EQ(launcher->finish(std::chrono::seconds(20)).exit_code, 127);
}

std::string name_of(const testing::TestParamInfo<Kind>& info) {
  return std::array{"UnreadTerminal", "StoppedTerminal", "UnreadPipe"}[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Outputs, StalledOutputFault,
                         testing::Values(Kind::kUnreadTerminal, Kind::kStoppedTerminal, Kind::kUnreadPipe), name_of);

TEST(OutputFault, APagersPipeHoldsTheRestWhenTheLauncherLeaves) {
  Stalled output = stalled_output(Kind::kUnreadPipe);
  Process::Settings settings;
  settings.stdout_fd = output.launchers.get();
  Process launcher(job(2, "seq 1 16000"), settings);
  output.launchers.reset();
  EXPECT_EQ(launcher.finish(std::chrono::seconds(20)).exit_code, 0);
  const std::string text = read_to_the_end(output.ours.get());
  for (const int rank : {0, 1}) EXPECT_TRUE(shown_by(text, rank) == numbers(16000)) << "rank " << rank;
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 32000);
}

TEST(OutputFault, ATerminalThatGoesOnShowsEverything) {
  Stalled output = stalled_output(Kind::kStoppedTerminal);
  Process::Settings settings;
  settings.stdout_fd = output.launchers.get();
  Process launcher(job(2, "seq 1 40000; echo end"), settings);
  std::thread reader([&, fd = output.ours.get()] {
    const std::string text = read_to_the_end(fd);
    EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 80002);  // more if the beginning of a line had to wait
    EXPECT_TRUE(contains(text, "[rank 0]: end") && contains(text, "[rank 1]: end"));
  });
  tcflow(output.launchers.get(), TCOON);
  output.launchers.reset();
  EXPECT_EQ(launcher.finish().exit_code, 0);
  reader.join();
}

TEST(OutputFault, AFullDiskUnderStandardOutputCostsLinesAndNoMore) {
  const Fd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  Process::Settings settings;
  settings.stdout_fd = full.get();
  Process launcher(job(2, "seq 1 20000; echo said >&2"), settings);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_TRUE(contains(end.err, "cannot write to standard output") && contains(end.err, "No space left on device"))
      << end.err;
  EXPECT_TRUE(contains(end.err, "[rank 1]: said")) << end.err;
}

TEST(OutputFault, AFullDiskUnderTheLogsCostsLinesOfTheLogsAndNoMore) {
  const SmallDisk disk(256 << 10);
  const ScratchFolder folder;
  const std::string script = "seq 1 60000; touch " + folder.path("full") + "$RANK; while ! [ -e " +
                             folder.path("room") + " ]; do sleep 0.01; done; echo end $RANK; seq 1 10000";
  const std::string path = disk.path("logs/j/attempt_0/0/stdout.log");
  Process launcher(job(2, script, {"--log-dir", disk.path("logs"), "--rdzv-id", "j", "--tee", "1"}));
  ASSERT_TRUE(wait_for([&] {
    return contains(launcher.out_so_far(), "[rank 0]: 60000\n") && contains(launcher.out_so_far(), "[rank 1]: 60000\n");
  }));
  // Log files are written in a thread of their own, which may be later than the output.
  ASSERT_TRUE(wait_for([&] { return contains(launcher.err_so_far(), "cannot write log file " + path); }));
  disk.resize(8 << 20);
  folder.write("room", "");
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 0);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(shown_by(end.out, rank) == numbers(60000) + "end " + std::to_string(rank) + numbers(10000)) << rank;
  }
  EXPECT_GE(std::count(end.out.begin(), end.out.end(), '\n'), 140002);  // more if half a line had to wait
  EXPECT_TRUE(contains(end.err, "cannot write log file " + path + ": No space left on device")) << end.err;
  const std::string log = read_file(path);
  EXPECT_TRUE(contains(log, " lines are missing here: No space left on device\n"));
  EXPECT_TRUE(contains(log, "end 0\n"));
}

TEST(OutputFault, ALimitOnFilesSizesDoesNotEndTheLauncher) {
  const ScratchFolder folder;
  const FileSizeLimit limit(2 << 20);
  Process launcher({"sh", "-c",
                    std::string("exec ") + LOCKSTEP_PROGRAM + " run --nproc-per-node 2 --log-dir " +
                        folder.path("logs") + " --rdzv-id j --tee 1 sh -c 'seq 1 400000' > /dev/null"});
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_TRUE(contains(end.err, "stdout.log: File too large")) << end.err;
}

TEST(OutputFault, TooFewDescriptorsAreNamedAndNothingIsLeft) {
  expect_no_leak_search_in_programs();
  const std::string run = std::string(LOCKSTEP_PROGRAM) + " run --nproc-per-node 8 sh -c 'echo ready; exec sleep 600'";
  int complaints = 0;
  for (int limit = 4; limit <= 52; limit += 3) {
    Process launcher({"sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec " + run});
    const auto all_run = [&] {
      const std::string out = launcher.out_so_far();
      return std::count(out.begin(), out.end(), '\n') == 8;
    };
    EXPECT_TRUE(wait_for([&] { return launcher.ended() || all_run(); })) << limit;
    if (!launcher.ended()) kill(launcher.pid(), SIGTERM);
    const Finished end = launcher.finish();
    EXPECT_TRUE(launcher.wait_until_no_descendant()) << limit;
    if (end.exit_code == 128 + SIGTERM) break;  // enough of them
    complaints += contains(end.err, "Too many open files") ? 1 : 0;
    EXPECT_TRUE(contains(end.err, "open files") || contains(end.err, "error while loading"))
        << limit << ": " << end.err;
  }
  EXPECT_GT(complaints, 3);
}

}  // namespace
}  // namespace lockstep::test
