// The parts of the launcher that need no processes.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "launch/job/failure_report.h"
#include "launch/job/job_services.h"
#include "launch/job/worker_environment.h"
#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/output/stream_choice.h"
#include "launch/output/tail.h"
#include "launch/process/cores.h"
#include "launch/process/process_tree.h"
#include "launch/process/program.h"
#include "support/scratch_folder.h"

namespace lockstep::launch {
namespace {

TEST(StreamChoice, ReadsTorchrunsNotation) {
  EXPECT_FALSE(parse_stream_choice("0").value().any());
  EXPECT_EQ(parse_stream_choice("3").value().of(7), Streams::kBoth);
  const StreamChoice some = parse_stream_choice("0:1,1:3").value();
  EXPECT_EQ(some.of(0), Streams::kOut);
  EXPECT_EQ(some.of(1), Streams::kBoth);
  EXPECT_EQ(some.of(2), Streams::kNone);
  for (const char* wrong : {"", "4", "-1", "x", "0:", ":1", "0:4", "0:1,", "0:1,0:2", "1,2"}) {
    const auto result = parse_stream_choice(wrong);
    EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(ExitText, ASignalHasItsNameIfThereIsOne) {
  Exit exit;
  EXPECT_EQ(describe_exit(exit), "exit code 0");
  exit.signal = SIGSEGV;
  exit.core_dumped = true;
  EXPECT_EQ(describe_exit(exit), "signal SIGSEGV (11), core dumped");
  exit.signal = SIGRTMIN;
  EXPECT_EQ(describe_exit(exit), "signal 34, core dumped");
}

TEST(WorkerEnvironment, OursWinOverInherited) {
  const std::vector<std::string> inherited{"PATH=/bin", "RANK=9", "RANKS=3"};
  const auto merged = merge_environment(inherited, {{"RANK", "0"}});
  EXPECT_EQ(merged, (std::vector<std::string>{"PATH=/bin", "RANKS=3", "RANK=0"}));
  EXPECT_STREQ(find_variable(merged, "RANK"), "0");
  EXPECT_EQ(find_variable(merged, "RAN"), nullptr);
}

TEST(WorkerEnvironment, RanksFollowFromTheNodesFirst) {
  JobSpec job;
  job.local_world_size = 2;
  job.world_size = 6;
  job.first_rank = 4;
  job.node_rank = 2;
  job.num_nodes = 3;
  job.first_role_rank = 1;
  job.role_world_size = 3;
  const auto entries = merge_environment({}, worker_variables(job, 1));
  EXPECT_STREQ(find_variable(entries, "RANK"), "5");
  EXPECT_STREQ(find_variable(entries, "LOCAL_RANK"), "1");
  EXPECT_STREQ(find_variable(entries, "GROUP_RANK"), "2");
  EXPECT_STREQ(find_variable(entries, "ROLE_RANK"), "2");
  EXPECT_STREQ(find_variable(entries, "ROLE_WORLD_SIZE"), "3");
  EXPECT_STREQ(find_variable(entries, "GROUP_WORLD_SIZE"), "3");
  EXPECT_EQ(find_variable(entries, "OMP_NUM_THREADS"), nullptr);
}

TEST(WorkerEnvironment, AsksForHugePagesUnlessTheUserHasDecided) {
  const auto with_huge_pages = [](std::vector<std::string> environment) {
    use_huge_pages(environment);
    return environment;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(with_huge_pages({"A=1"}), (Words{"A=1", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}));
  EXPECT_EQ(with_huge_pages({"GLIBC_TUNABLES=", "A=1"}), (Words{"A=1", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}));
  EXPECT_EQ(with_huge_pages({"GLIBC_TUNABLES=glibc.malloc.check=1"}),
            (Words{"GLIBC_TUNABLES=glibc.malloc.check=1:glibc.malloc.hugetlb=1"}));
  const Words decided{"GLIBC_TUNABLES=glibc.malloc.hugetlb=0:glibc.malloc.check=1", "A=1"};
  EXPECT_EQ(with_huge_pages(decided), decided);
}

TEST(WorkerEnvironment, ATerminalThatNobodyLooksAtIsDumb) {
  std::vector<std::string> environment{"TERM=xterm-256color", "PAGER=less", "TERMINFO=/x", "COLORTERM=truecolor"};
  use_dumb_terminal(environment);
  EXPECT_EQ(environment, (std::vector<std::string>{"PAGER=less", "TERMINFO=/x", "TERM=dumb", "GIT_PAGER=cat"}));
}

TEST(WorkerEnvironment, AtLeastOneThread) {
  EXPECT_EQ(threads_per_worker(8, 2), 4);
  EXPECT_EQ(threads_per_worker(2, 9), 1);
  EXPECT_EQ(threads_per_worker(0, 1), 1);
}

TEST(Cores, SharesAreDisjointAndComplete) {
  const auto shares = share_cores({0, 2, 4, 6, 8}, 2);
  EXPECT_EQ(shares[0], (std::vector<int>{0, 2}));
  EXPECT_EQ(shares[1], (std::vector<int>{4, 6, 8}));
  EXPECT_TRUE(share_cores({0, 1}, 3)[2].empty());
  EXPECT_TRUE(share_cores({0, 1}, 1)[0].empty());
}

TEST(Program, FindsExecutablesAsAShellDoes) {
  EXPECT_EQ(find_executable("sh", "/nowhere:/bin").value(), "/bin/sh");
  EXPECT_EQ(find_executable("/bin/sh", "").value(), "/bin/sh");
  EXPECT_EQ(find_executable("sh", "/nowhere").status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(find_executable("/etc/passwd", "").status().code(), ErrorCode::kPermission);
  EXPECT_EQ(find_executable("/etc/", "").status().code(), ErrorCode::kInvalidArgument);
}

// cron and ssh run a program by its path, and have another PATH.
TEST(Program, FindsItselfOutsideOfPath) {
  EXPECT_EQ(find_executable("launch_tests", "/nowhere").value(), own_program().value());
}

TEST(OutOfMemory, IsToldByTheControlGroupElseByTheMachine) {
  const test::ScratchFolder folder;
  folder.write("cgroup", "0::/job\n");
  folder.write("vmstat", "nr_free_pages 7\noom_kill 5\n");
  const auto kills = [&] { return memory_kills(folder.path("cgroup"), folder.path("mount"), folder.path("vmstat")); };
  const MemoryKills machine = kills();
  EXPECT_EQ(machine.count, 5U);
  folder.write("mount/job/memory.events", "low 0\noom 4\noom_kill 2\n");
  const MemoryKills before = kills();
  EXPECT_EQ(before.count, 2U);
  EXPECT_EQ(lack_of_memory(before, kills()), "");
  EXPECT_EQ(lack_of_memory(machine, before), "");
  folder.write("mount/job/memory.events", "low 0\noom 5\noom_kill 3\n");
  EXPECT_NE(lack_of_memory(before, kills()).find("ended 1 process of this control group "), std::string::npos);
}

TEST(Program, KnowsItsOwnFile) {
  EXPECT_TRUE(own_program().value().ends_with("/launch_tests")) << own_program().value();
}

TEST(LogFolder, IsWithinTheUsersWhateverTheRunId) {
  EXPECT_EQ(log_folder_of("logs", "Job-1.b_2"), "logs/Job-1.b_2");
  EXPECT_EQ(log_folder_of("logs", "../../../x"), "logs/_._.._.._x");
  EXPECT_EQ(log_folder_of("logs", ".."), "logs/_.");
  EXPECT_EQ(log_folder_of("logs", "/etc\n\x1b"), "logs/_etc__");
}

TEST(LogFolder, WhatIsNoFileIsNamedAndNotWaitedFor) {
  const test::ScratchFolder folder;
  const std::string fifo = folder.path("stdout.log");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(open_log_file(fifo).status().message(),
            "cannot write logs to '" + fifo + "' (--log-dir): expected a regular file, found a FIFO");
  EXPECT_EQ(read_end_of_file(fifo, 10), "");
  const std::string file = folder.path("stderr.log");
  for (const std::string text : {"first", "last"}) {
    EXPECT_EQ(::write(open_log_file(file).value().get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  EXPECT_EQ(read_end_of_file(file, 5), "\nlast");
  const std::size_t size = read_end_of_file(file, 1000).size();
  EXPECT_EQ(read_end_of_file(file, 5, size - 2), "st");
  EXPECT_EQ(read_end_of_file(file, 5, size + 1), "");
  EXPECT_TRUE(read_end_of_file(file, 100).starts_with("first\nlockstep: another run begins here, "));
}

TEST(Tail, KeepsTheLastLinesWithinItsBounds) {
  Tail tail;
  for (int i = 0; i < 100'000; ++i) tail.append(std::to_string(i) + "\n");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), Tail::kMaxLines);
  EXPECT_EQ(lines.back(), "99999");
  tail.append(std::string(100'000, 'x'));
  ASSERT_EQ(tail.lines().size(), 1U);
  EXPECT_EQ(tail.lines().front().size(), Tail::kMaxBytes);
}

TEST(Tail, BeginsWithAWholeLetter) {
  std::string letters = "x";
  while (letters.size() < 3 * Tail::kMaxBytes) letters += "\u20ac";  // three bytes
  for (const std::size_t at_once : {letters.size(), std::size_t{7}}) {
    Tail tail;
    for (std::size_t i = 0; i < letters.size(); i += at_once) tail.append(letters.substr(i, at_once));
    const std::string line = tail.lines().at(0);
    EXPECT_TRUE(line.starts_with("\u20ac")) << at_once;
    EXPECT_GT(line.size(), Tail::kMaxBytes - 3);
  }
}

// LibTorch writes the call stack behind the message of an error, with up to 64 frames.
TEST(Tail, FindsTheMessageBeforeACallStack) {
  std::string frames = "Exception raised from check at Utils.h:47 (most recent call first):\n";
  for (int i = 0; i < 64; ++i) frames += "frame #" + std::to_string(i) + ": " + std::string(500, 'f') + "\n";
  const auto message = [](const std::string& text) {
    Tail tail;
    tail.append("a line of before\n" + text);
    return tail.message_before_stack();
  };
  const std::string abort = "terminate called after throwing an instance of 'c10::Error'\n  what():  ";
  EXPECT_EQ(message(abort + "mm: (2x3 and 2x3)\n" + frames + "\n"), "mm: (2x3 and 2x3)");
  EXPECT_EQ(message(abort + "first\n  second\n" + frames), "first\n  second");
  const std::string traceback = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\n";
  EXPECT_EQ(message(traceback + "DistBackendError: rank 1\nhas died\r\n" + frames),
            "DistBackendError: rank 1\nhas died");
  EXPECT_EQ(message(traceback + "RuntimeError: x\nException raised from f at a:1 (most recent call first):\n"
                                "C++ CapturedTraceback:\n#4 f from a.cpp:1\n"),
            "RuntimeError: x");
  EXPECT_EQ(message("  indented\nerror: too large\n" + frames), "error: too large")
      << "the program has caught the error";
  // The program went on, or its stream ends in another way.
  EXPECT_EQ(message(abort + "x\n" + frames + "caught, and going on\n"), "");
  EXPECT_EQ(message(abort + "a message without a stack\n"), "");
  EXPECT_EQ(message(frames.substr(frames.find('\n') + 1)), "") << "a stack of something else";
  EXPECT_EQ(Tail().message_before_stack(), "");
}

TEST(Tail, ShowsWhatATerminalWould) {
  EXPECT_EQ(visible_part("10%\r20%\r"), "20%");
  EXPECT_EQ(visible_part("\r30%"), "30%");
  EXPECT_EQ(visible_part("line\r"), "line");
  EXPECT_EQ(visible_part(""), "");
}

TEST(Tail, LettersAreNotCut) {
  EXPECT_EQ(whole_letters("a\xe2\x96"), "a");
  EXPECT_EQ(whole_letters("a\xe2\x96\x88"), "a\xe2\x96\x88");
  EXPECT_EQ(whole_letters("\xc3"), "");
  EXPECT_EQ(whole_letters("\xf0\x9f\x98"), "");
  EXPECT_EQ(whole_letters("\x80\x80\x80\x80\x80"), "\x80\x80\x80\x80\x80") << "not UTF-8";
}

TEST(Tail, LinesAreCutToTheWidthOfATerminal) {
  EXPECT_EQ(fit_to_columns("12345", 5), "12345");
  EXPECT_EQ(fit_to_columns("123456", 5), "12345");
  EXPECT_EQ(fit_to_columns("\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88", 2), "\xe2\x96\x88\xe2\x96\x88");
  EXPECT_EQ(fit_to_columns("\xe4\xb8\xad\xe6\x96\x87", 3), "\xe4\xb8\xad") << "two columns each";
  EXPECT_EQ(fit_to_columns("\x1b[31mred\x1b[0m", 2), "\x1b[31mre\x1b[0m");
}

// The bytes that a console writes into a pipe.
std::string written(bool terminal, const std::function<void(Console&)>& fill) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  {
    Console console(BackgroundWriter::start(ends[1]).value(), terminal);
    fill(console);
    console.flush();
    EXPECT_TRUE(console.writer().wait_until_written(Deadline::after(std::chrono::seconds(20))));
  }
  close(ends[1]);
  std::array<char, 4096> buffer{};
  const ssize_t size = read(ends[0], buffer.data(), buffer.size());
  close(ends[0]);
  return std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
}

const char* const kFirst = "first";
const char* const kSecond = "second";

TEST(Console, PartialLinesGoOnOrAreClosed) {
  EXPECT_EQ(written(false,
                    [](Console& console) {
                      console.partial(kFirst, "1: ", "half");
                      console.line(kFirst, "1: ", " done");
                      console.partial(kFirst, "1: ", "again");
                      console.line(kSecond, "2: ", "other");
                      console.line(kFirst, "1: ", "rest");
                    }),
            "1: half done\n1: again\n2: other\n1: rest\n");
}

TEST(Console, ProgressStaysBelowOtherLines) {
  EXPECT_EQ(written(true,
                    [](Console& console) {
                      console.progress(kFirst, "1: ", "10%");
                      console.line(kSecond, "2: ", "other");
                      console.progress(kFirst, "1: ", "20%");
                      console.line(kFirst, "1: ", "100%");
                      console.line(kSecond, "2: ", "end");
                    }),
            "\r\x1b[K1: 10%\r\x1b[K2: other\n1: 10%\r\x1b[K1: 20%\r\x1b[K1: 100%\n2: end\n");
}

TEST(FailureReport, SaysWhoHowWhereAndWhat) {
  Failure failure;
  failure.exit.pid = 77;
  failure.exit.signal = SIGABRT;
  failure.exit.core_dumped = true;
  failure.exit.run_time = std::chrono::milliseconds(1500);
  failure.rank = 3;
  failure.local_rank = 1;
  failure.host = "node7";
  failure.command = "./train -x";
  failure.error = "ValueError: too \x1b[31mhot\nlockstep: all is well";
  failure.stderr_tail = {"what(): bad"};
  EXPECT_EQ(format_failure(failure),
            "lockstep: rank 3 failed first: signal SIGABRT (6), core dumped\n"
            "  host node7, pid 77, local rank 1, ran 1.50 s\n"
            "  command: ./train -x\n"
            "  its error: ValueError: too \\x1b[31mhot\n"
            "    lockstep: all is well\n"
            "  the end of its stderr:\n"
            "    what(): bad");
  EXPECT_EQ(exit_code_of(failure.exit), 128 + SIGABRT);
}

TEST(JobServices, KeysAreFresh) {
  const std::string first = make_job_key().value();
  EXPECT_EQ(first.size(), 64U);
  EXPECT_NE(first, make_job_key().value());
}

TEST(JobServices, ReservedPortIsForThoseWhoNameIt) {
  const ReservedPort reserved = reserve_port("127.0.0.1", 0).value();
  ASSERT_GT(reserved.port, 0);
  // A listener as intended: SO_REUSEADDR and the port's number, on all interfaces like rank 0 of env://.
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(reserved.port));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
  ASSERT_EQ(listen(listener.get(), 1), 0) << strerror(errno);
  // While it listens there, the port cannot be reserved.
  EXPECT_EQ(reserve_port("127.0.0.1", reserved.port).status().code(), ErrorCode::kUnavailable);
}

TEST(JobServices, StoreListensForThisJob) {
  JobSpec job;
  job.job_key = make_job_key().value();
  const JobServices services = JobServices::start(job).value();
  EXPECT_EQ(job.store, "127.0.0.1:" + std::to_string(services.store->port()));
  comm::TcpStoreOptions options;
  options.server = services.store->endpoint();
  options.job_key = job.job_key;
  auto store = comm::TcpStore::connect(options, Deadline::after(std::chrono::seconds(10)));
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_TRUE(store.value()->set("key", "value").ok());
}

}  // namespace
}  // namespace lockstep::launch
