// The built program, with real processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/jobs.h"
#include "lockstep/base/fd.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

TEST(RunMulti, WorkersHaveTorchrunsEnvironment) {
  const Finished end = run_program({"env", "-u", "OMP_NUM_THREADS", LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2",
                                    "--rdzv-id", "job7", "--max-restarts", "4", "sh", "-c",
                                    "[ $RANK = 1 ] && echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                                    "$GROUP_WORLD_SIZE $ROLE_RANK $ROLE_NAME $ROLE_WORLD_SIZE $MASTER_ADDR "
                                    "$TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS "
                                    "$LOCKSTEP_RESTART_COUNT ${LOCKSTEP_STORE%:*} ${#LOCKSTEP_JOB_KEY}; "
                                    "test $OMP_NUM_THREADS -ge 1 && test $MASTER_PORT -gt 0"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[rank 1]: 1 1 2 2 0 1 1 default 2 127.0.0.1 job7 0 4 0 127.0.0.1 64\n");
}

TEST(RunMulti, APythonProgramRunsOnEveryCore) {
  const ScratchFolder folder;
  folder.write("train.py", "import os\nprint(os.environ['WORLD_SIZE'])\n");
  const Finished end =
      run_program({"env", "CUDA_VISIBLE_DEVICES=", "taskset", "-c", std::to_string(sched_getcpu()), LOCKSTEP_PROGRAM,
                   "run", "--standalone", "--nproc-per-node", "auto", folder.path("train.py")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "1\n");
}

TEST(RunMulti, UsersThreadCountIsKept) {
  const Finished end =
      run_program({"env", "OMP_NUM_THREADS=7", LOCKSTEP_PROGRAM, "run", "sh", "-c", "echo $OMP_NUM_THREADS"});
  EXPECT_EQ(end.out, "7\n");
}

TEST(RunMulti, MoreWorkersThanCores) {
  const Finished end = run_job(9, "echo $RANK");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(sorted_lines(end.out).size(), 9U);
}

TEST(RunMulti, WhatFollowsTwoDashesIsTheProgram) {
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "run", "--", "echo", "-h", "--", "--tee"}).out, "-h -- --tee\n");
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "run", "echo", "a", "--", "b"}).out, "a -- b\n");
}

TEST(RunMulti, StandardInputGoesToRankZero) {
  const Finished end = run_program(
      {"sh", "-c", std::string("echo hello | ") + LOCKSTEP_PROGRAM + " run --nproc-per-node 2 sh -c 'cat; echo .'"});
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: .", "[rank 0]: hello", "[rank 1]: ."}));
}

// The descriptors 0 to 2 of the worker, of the supervisor and of the launcher, in this order.
constexpr const char* kListDescriptors =
    "for pid in $$ $PPID $(cut -d \" \" -f 4 /proc/$PPID/stat); do for fd in 0 1 2; do "
    "readlink /proc/$pid/fd/$fd; done; done | cat > list";

TEST(RunMulti, StandardDescriptorsThatAreClosedAreEmpty) {
  for (const std::string closed : {"<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    const ScratchFolder folder;
    const Finished end = run_program({"sh", "-c",
                                      "cd " + folder.path().native() + "; exec " + LOCKSTEP_PROGRAM + " run sh -c '" +
                                          kListDescriptors + "' </dev/null >/dev/null 2>/dev/null " + closed});
    EXPECT_EQ(end.exit_code, 0) << closed << end.err;
    EXPECT_EQ(sorted_lines(read_file(folder.path("list"))), Lines(9, "/dev/null")) << closed;
  }
}

TEST(RunFault, FirstFailureIsNamedWithTheEndOfItsStderr) {
  const Finished end = run_job(3,
                               "if [ $RANK = 1 ]; then seq 1 30 >&2; echo 'out of luck' >&2; kill -SEGV $$; fi; "
                               "exec sleep 600");
  EXPECT_EQ(end.exit_code, 128 + SIGSEGV);
  EXPECT_TRUE(contains(end.err, "lockstep: rank 1 failed first: signal SIGSEGV (11)")) << end.err;
  EXPECT_TRUE(contains(end.err, ", pid ")) << end.err;
  EXPECT_TRUE(contains(end.err, "  the end of its stderr:\n    12\n")) << end.err;
  EXPECT_TRUE(contains(end.err, "\n    30\n    out of luck\n")) << end.err;
  EXPECT_FALSE(contains(end.err, "rank 0 failed")) << end.err;
}

TEST(RunFault, ExitCodeIsThatOfTheFirstFailure) {
  const Finished end = run_job(2, "[ $RANK = 1 ] && exit 7; trap 'exit 3' TERM; sleep 600 & wait");
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_TRUE(contains(end.err, "rank 1 failed first: exit code 7")) << end.err;
  EXPECT_TRUE(contains(end.err, "it wrote nothing to stderr")) << end.err;
}

Finished run_failing(const std::string& folder, std::vector<std::string> exit_code = {}) {
  std::vector<std::string> words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "--grace", "20"};
  if (!exit_code.empty() && exit_code.front() == "stay") words.back() = "0.1";
  words.insert(words.end(), {LOCKSTEP_FAILING_WORKER, folder});
  words.insert(words.end(), exit_code.begin(), exit_code.end());
  return run_program(words);
}

TEST(RunFault, TheRankThatClaimedTheFailureIsNamedThoughAnotherExitedBefore) {
  const ScratchFolder folder;
  const Finished end = run_failing(folder.path().string());
  EXPECT_EQ(end.exit_code, 5);
  EXPECT_TRUE(contains(end.err, "rank 0 failed first: exit code 5")) << end.err;
}

TEST(RunFault, TheRankThatClaimedTheFailureMayRecover) {
  const ScratchFolder folder;
  const Finished end = run_failing(folder.path().string(), {"0"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_TRUE(contains(end.err, "rank 1 failed first: exit code 7")) << end.err;
}

TEST(RunFault, TheRankThatClaimedTheFailureIsNotAwaitedForEver) {
  const ScratchFolder folder;
  const Finished end = run_failing(folder.path().string(), {"stay"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_TRUE(contains(end.err, "rank 1 failed first: exit code 7")) << end.err;
}

TEST(RunFault, WorkersThatIgnoreSigtermAreKilled) {
  const ScratchFolder folder;
  const std::string deaf = folder.path("deaf");
  const Finished end =
      run_job(2,
              "if [ $RANK = 0 ]; then trap '' TERM; : > " + deaf + "; while :; do sleep 1; done; fi; until [ -e " +
                  deaf + " ]; do sleep 0.01; done; exit 7",
              {"--grace", "0.1"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_TRUE(contains(end.err, "rank 0 had not ended 0.1 s (--grace) after being asked to, and was killed"))
      << end.err;
}

TEST(RunFault, EndOfStderrIsReadFromALogFileToo) {
  const ScratchFolder folder;
  // Also without a grace time: the file answers at once, but not in no time.
  const Finished end = run_job(2, "echo sad $RANK >&2; [ $RANK = 0 ] || exec sleep 600; exit 4",
                               {"--log-dir", folder.path(), "--redirects", "3", "--grace", "0"});
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_TRUE(contains(end.err, "  the end of its stderr:\n    sad 0\n")) << end.err;
}

TEST(RunFault, RestartsCountUpAndEnd) {
  const Finished end = run_job(2, "echo try $LOCKSTEP_RESTART_COUNT; [ $LOCKSTEP_RESTART_COUNT = 2 ] || exit 5",
                               {"--max-restarts", "3"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "[rank 0]: try 2")) << end.out;
  EXPECT_FALSE(contains(end.out, "try 3")) << end.out;
  EXPECT_TRUE(contains(end.err, "restart 2 of 3")) << end.err;

  const Finished given_up = run_job(1, "exit 5", {"--max-restarts", "1"});
  EXPECT_EQ(given_up.exit_code, 5);
  EXPECT_TRUE(contains(given_up.err, "after 1 of 1 restarts")) << given_up.err;
}

TEST(RunFault, RestartsWriteALogForEachAttempt) {
  const ScratchFolder folder;
  const Finished end = run_job(2, "echo try $LOCKSTEP_RESTART_COUNT; [ $LOCKSTEP_RESTART_COUNT = 1 ] || exit 5",
                               {"--max-restarts", "3", "--log-dir", folder.path(), "--rdzv-id", "j", "--tee", "3"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(read_file(folder.path() / "j" / "attempt_1" / "1" / "stdout.log"), "try 1\n");
}

TEST(RunFault, ProgramsThatCannotBeStarted) {
  const Finished missing = run_program({LOCKSTEP_PROGRAM, "run", "./no_such_program"});
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_TRUE(contains(missing.err, "no file './no_such_program'")) << missing.err;

  const ScratchFolder folder;
  const std::string path = folder.path() / "plain";
  std::ofstream(path) << "text\n";
  const Finished plain = run_program({LOCKSTEP_PROGRAM, "run", path});
  EXPECT_EQ(plain.exit_code, 126);
  EXPECT_TRUE(contains(plain.err, path) && contains(plain.err, "not executable")) << plain.err;

  chmod(path.c_str(), 0755);
  const Finished unknown = run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", path});
  EXPECT_EQ(unknown.exit_code, 126);
  EXPECT_TRUE(contains(unknown.err, path) && contains(unknown.err, "begins with '#!'")) << unknown.err;
}

TEST(RunFault, UnwritableLogFolderIsNamed) {
  const Finished end = run_job(2, "true", {"--log-dir", "/dev/null/logs", "--tee", "3"});
  EXPECT_NE(end.exit_code, 0);
  EXPECT_TRUE(contains(end.err, "/dev/null/logs") && contains(end.err, "--log-dir")) << end.err;
}

TEST(RunFault, ProgramsThatAreFoundNeverEndWithTheCodeOfMissingOnes) {
  const Finished end = run_program({"env", "TMPDIR=/no/such/folder", LOCKSTEP_PROGRAM, "run", "--tee", "3", "true"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "'/no/such/folder' (TMPDIR")) << end.err;
}

// The limit holds for memfds, in which the supervisor's program and the list of workers are.
TEST(RunFault, ALimitOnFileSizesIsNamed) {
  const std::string user = std::to_string(1'000'000'000 + getpid());
  const Finished end = run_program({"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "prlimit",
                                    "--fsize=1024", LOCKSTEP_PROGRAM, "run", "true"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(
      contains(end.err, "File too large (files of this process may have 1024 bytes; raise the limit: ulimit -f)"))
      << end.err;
}

TEST(RunFault, PortOfAnotherProgramIsNamed) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(listener.valid());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Finished end = run_job(1, "true", {"--master-port", port});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "127.0.0.1:" + port) && contains(end.err, "another program listens")) << end.err;
}

// Each worker has a child, and a grandchild in another session whose parent has exited. All ignore SIGTERM, SIGINT and
// SIGHUP.
constexpr const char* kFamily =
    "trap '' TERM INT HUP; sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &) ; echo ready; wait; sleep 600";

// They have to be killed, and may not have saved what they wanted to: the exit code says so.
void expect_all_end_after(int signal_number) {
  Process launcher(job(2, kFamily, {"--grace", "0.2"}));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  kill(launcher.pid(), signal_number);
  EXPECT_EQ(launcher.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(launcher.wait_until_no_descendant()) << "some descendant lives on";
}

TEST(RunFault, TermEndsEveryDescendant) {
  expect_all_end_after(SIGTERM);
}
TEST(RunFault, InterruptEndsEveryDescendant) {
  expect_all_end_after(SIGINT);
}
TEST(RunFault, HangUpEndsEveryDescendant) {
  expect_all_end_after(SIGHUP);
}
TEST(RunFault, KillOfTheLauncherEndsEveryDescendant) {
  expect_all_end_after(SIGKILL);
}

TEST(RunFault, KillOfTheSupervisorEndsEveryDescendant) {
  Process launcher(job(2, kFamily));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  for (const pid_t child : children_of(launcher.pid())) kill(child, SIGKILL);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "lockstep-supervisor) was killed")) << end.err;
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

TEST(RunFault, SignalIsForwardedAndWorkersMayFinish) {
  for (const int number : {SIGTERM, SIGQUIT}) {
    Process launcher(job(2, "trap 'echo saved; exit 0' TERM QUIT; echo ready; while :; do sleep 0.01; done"));
    ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
    kill(launcher.pid(), number);
    const Finished end = launcher.finish();
    EXPECT_EQ(end.exit_code, 128 + number);
    EXPECT_EQ(sorted_lines(end.out),
              (Lines{"[rank 0]: ready", "[rank 0]: saved", "[rank 1]: ready", "[rank 1]: saved"}));
    EXPECT_FALSE(contains(end.err, "failed")) << end.err;
  }
}

// As Slurm and systemd do it.
TEST(RunFault, SignalsToAllProcessesLeaveTheWorkersTheirTime) {
  Process launcher(job(
      2, "trap 'sleep 0.2; echo saved; exit 0' TERM; trap 'echo told' USR1; echo ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  for (const int number : {SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGTERM}) {
    for (const pid_t supervisor : children_of(launcher.pid())) kill(supervisor, number);
  }
  kill(launcher.pid(), SIGUSR1);
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 4; }));
  kill(launcher.pid(), SIGTERM);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: ready", "[rank 0]: saved", "[rank 0]: told", "[rank 1]: ready",
                                          "[rank 1]: saved", "[rank 1]: told"}));
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

// A terminal that closes sends SIGHUP twice, `timeout` SIGTERM twice, systemd both.
TEST(RunFault, OneRequestThatComesAsSeveralSignalsLeavesTheWorkersTheirTime) {
  Process launcher(job(2, "trap 'sleep 1.5; echo saved; exit 0' TERM HUP; echo ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  for (const int number : {SIGTERM, SIGTERM, SIGHUP}) {
    kill(launcher.pid(), number);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_EQ(sorted_lines(end.out), (Lines{"[rank 0]: ready", "[rank 0]: saved", "[rank 1]: ready", "[rank 1]: saved"}));
}

// Ctrl-C a second time.
TEST(RunFault, ASecondSignalKillsAtOnce) {
  Process launcher(job(2, "trap 'echo told' INT; echo ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  kill(launcher.pid(), SIGINT);
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

TEST(RunFault, AStoppedSupervisorEndsTheWorkersOfALauncherThatIsKilled) {
  Process launcher(job(2, "echo ready; exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return sorted_lines(launcher.out_so_far()).size() == 2; }));
  for (const pid_t supervisor : children_of(launcher.pid())) {
    kill(supervisor, SIGSTOP);
    ASSERT_TRUE(wait_for([&] { return is_stopped(supervisor); }));
  }
  kill(launcher.pid(), SIGKILL);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

TEST(RunFault, DescendantsThatOutliveASuccessfulJobAreEnded) {
  Process launcher(job(2, "(setsid sleep 600 &) ; exit 0"));
  EXPECT_EQ(launcher.finish().exit_code, 0);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

// The launcher and its job are in a new PID namespace, but /proc is still that of the machine.
TEST(RunFault, DescendantsAreEndedWhereProcIsThatOfAnotherPidNamespace) {
  const ScratchFolder folder;
  const std::string pid = folder.path("pid");
  Process space({"unshare", "--pid", "--fork", "sh", "-c",
                 std::string(LOCKSTEP_PROGRAM) + " run sh -c '(setsid sh -c \"echo \\$\\$ > " + pid + "~; mv " + pid +
                     "~ " + pid + "; exec sleep 600\" &); while ! [ -e " + pid +
                     " ]; do sleep 0.01; done'; echo $?; kill -0 $(cat " + pid + ") && echo it lives on"});
  const Finished end = space.finish();
  EXPECT_EQ(end.out, "0\n") << end.err;
}

// Runs as a user with a limit on threads and processes. They are needed in this order: the launcher, its store's
// thread, the supervisor, the workers.
TEST(RunFault, WithoutThreadsOrProcessesIsAnErrorThatLeavesNothing) {
  expect_no_leak_search_in_programs();
  for (const int most : {1, 2, 3, 4}) {
    const std::string user = std::to_string(1'000'000'000 + getpid());
    std::vector<std::string> words{"setpriv", "--reuid",        user,      "--regid",
                                   user,      "--clear-groups", "prlimit", "--nproc=" + std::to_string(most)};
    const std::vector<std::string> run = job(2, "exec sleep 60");
    words.insert(words.end(), run.begin(), run.end());
    Process process(words);
    const Finished end = process.finish();
    EXPECT_NE(end.exit_code, 0) << most;
    EXPECT_LT(end.exit_code, 128) << most << " crashed: " << end.err;
    EXPECT_TRUE(contains(end.err, "Resource temporarily unavailable")) << most << ": " << end.err;
    EXPECT_TRUE(process.wait_until_no_descendant()) << most;
  }
}

}  // namespace
}  // namespace lockstep::test
