#include "support/process_ranks.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "launch/job/first_failure.h"
#include "launch/job/job_services.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// Collects the failures of EXPECT and ASSERT. GoogleTest owns it and deletes it when a rank, or a fork of one, calls
// exit.
class FailureCollector : public testing::EmptyTestEventListener {
 public:
  static FailureCollector& start() {
    auto* const collector = new FailureCollector;
    testing::UnitTest::GetInstance()->listeners().Append(collector);
    return *collector;
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    text_ += fmt::format("\n{}:{}: {}", result.file_name() == nullptr ? "unknown file" : result.file_name(),
                         result.line_number(), result.message());
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <typename T>
std::string added(const std::set<T>& before, const std::set<T>& now) {
  std::ostringstream text;
  for (const T& item : now) {
    if (!before.contains(item)) text << ' ' << item;
  }
  return text.str();
}

}  // namespace

std::set<pid_t> children_of(pid_t parent) {
  std::set<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    // "pid (any name) state ppid ..."
    const std::size_t bracket = text.rfind(')');
    if (bracket == std::string::npos) continue;
    if (std::stoi(text.substr(bracket + 4)) == parent) children.insert(std::stoi(name));
  }
  return children;
}

Leftovers Leftovers::now() {
  Leftovers result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    result.descriptors.insert(std::stoi(entry.path().filename()));
  }
  // The list includes the directory's own descriptor, which is closed by now.
  std::erase_if(result.descriptors, [](int fd) {
    return !std::filesystem::exists(fmt::format("/proc/self/fd/{}", fd)) &&
           !std::filesystem::is_symlink(fmt::format("/proc/self/fd/{}", fd));
  });
  result.children = children_of(getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    // Other programs use /dev/shm at the same time; our entries would have our name in theirs. The folders with
    // workers' error files belong to launchers, which other tests run at the same time.
    const std::string name = entry.path().filename();
    const bool is_launchers = name.starts_with("lockstep_errors_");
    if (name.find("lockstep") != std::string::npos && !is_launchers) result.shared_memory.insert(name);
  }
  return result;
}

void expect_nothing_left(const Leftovers& before) {
  const Leftovers now = Leftovers::now();
  EXPECT_EQ(added(before.descriptors, now.descriptors), "") << "descriptors are left open";
  EXPECT_EQ(added(before.children, now.children), "") << "child processes are left";
  EXPECT_EQ(added(before.shared_memory, now.shared_memory), "") << "entries are left in /dev/shm";
}

namespace {

// With LOCKSTEP_TEST_MACHINES=n this rank acts as if it ran on machine rank % n, unless LOCKSTEP_MACHINE is set.
void take_place(int rank) {
  const char* machines = std::getenv("LOCKSTEP_TEST_MACHINES");
  if (machines == nullptr) return;
  ::setenv("LOCKSTEP_MACHINE", fmt::format("machine{}", rank % std::atoi(machines)).c_str(), /*replace=*/0);
}

// A fork has only the thread that forks, so whatever the other threads were doing stays half done in it.
void expect_one_thread() {
#if !defined(__SANITIZE_THREAD__) && !defined(LOCKSTEP_EMULATED)  // these have a thread of their own
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  if (std::distance(begin(tasks), end(tasks)) != 1) {
    throw std::logic_error("run_processes forks: expected this thread alone, found several; call it before they start");
  }
#endif
}

struct Rank {
  pid_t pid = -1;
  Fd report;     // the text of its failures, in memory
  Fd variables;  // a pipe: its environment
};

void write_all(int fd, std::string_view text) {
  const ssize_t size = write(fd, text.data(), text.size());
  if (size != static_cast<ssize_t>(text.size())) throw std::runtime_error("write failed");
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t size = 0; (size = read(fd, buffer.data(), buffer.size())) > 0;) text.append(buffer.data(), size);
  return text;
}

[[noreturn]] void run_rank(int rank, const std::function<void(int rank)>& fn, int report, int variables) {
  std::string failure;
  try {
    std::istringstream lines(read_all(variables));
    if (lines.view().empty()) _exit(EXIT_FAILURE);  // the test has failed meanwhile
    close(variables);
    for (std::string name, value; std::getline(lines, name, '=') && std::getline(lines, value);) {
      ::setenv(name.c_str(), value.c_str(), /*replace=*/1);
    }
    const FailureCollector& failures = FailureCollector::start();
    take_place(rank);
    fn(rank);
    failure = failures.text();
  } catch (const std::exception& error) {
    failure = fmt::format(" threw: {}", error.what());
  } catch (...) {
    failure = " threw an exception that is not derived from std::exception";
  }
  write_all(report, failure);
  std::exit(failure.empty() ? EXIT_SUCCESS : EXIT_FAILURE);
}

// `before`: the ranks that run by now, whose descriptors are not for this one.
Rank fork_rank(int rank, const std::function<void(int rank)>& fn, std::vector<Rank>& before) {
  std::array<int, 2> pipe{-1, -1};
  Rank result;
  result.report.reset(memfd_create("report", MFD_CLOEXEC));
  if (!result.report.valid() || pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("no descriptor is left");
  result.variables.reset(pipe[1]);
  result.pid = fork();
  if (result.pid < 0) throw std::runtime_error("fork failed");
  if (result.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    before.clear();
    result.variables.reset();
    run_rank(rank, fn, result.report.get(), pipe[0]);
  }
  close(pipe[0]);
  return result;
}

std::string end_of(int rank, Rank& ended, int status) {
  lseek(ended.report.get(), 0, SEEK_SET);
  const std::string text = read_all(ended.report.get());
  if (WIFSIGNALED(status)) {
    return fmt::format("rank {} was killed by SIG{}{}\n", rank, sigabbrev_np(WTERMSIG(status)), text);
  }
  if (WEXITSTATUS(status) == 0) return {};
  return fmt::format("rank {}{}\n", rank, text.empty() ? fmt::format(" exited with {}", WEXITSTATUS(status)) : text);
}

// Ranks that run, and what launch::spawn gives them: variables, a store, word of ranks that have ended.
class ForkedRanks {
 public:
  ForkedRanks(int world, const std::function<void(int rank)>& fn) {
    expect_one_thread();
    std::fflush(nullptr);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int rank = 0; rank < world; ++rank) ranks_.push_back(fork_rank(rank, fn, ranks_));
    job_.local_world_size = job_.world_size = world;
    job_.job_key = launch::make_job_key().value();
    services_.emplace(launch::JobServices::start(job_).value());  // which has threads
    for (int rank = 0; rank < world; ++rank) {
      std::string text;
      for (const auto& [name, value] : worker_variables(job_, rank)) text += fmt::format("{}={}\n", name, value);
      write_all(ranks_[rank].variables.get(), text);
      ranks_[rank].variables.reset();
    }
  }
  ~ForkedRanks() {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) kill(rank.pid, SIGKILL);
    }
    wait(Deadline::never(), /*all=*/true);
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  // Blocks until all have ended or one has failed. After the first failure and after `deadline` all ranks get SIGTERM,
  // and SIGKILL `grace` later. Returns what went wrong, in order of time.
  std::string finish(std::chrono::milliseconds timeout, std::chrono::milliseconds grace) {
    wait(Deadline::after(timeout), /*all=*/false);
    if (running() > 0 && failures_.empty())
      failures_ = fmt::format("{} ranks still ran after {}\n", running(), timeout);
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) kill(rank.pid, SIGTERM);
    }
    wait(Deadline::after(grace), /*all=*/true);
    return failures_;
  }

 private:
  long running() const {
    return std::ranges::count_if(ranks_, [](const Rank& rank) { return rank.pid > 0; });
  }

  void wait(Deadline deadline, bool all) {
    Deadline look = Deadline::after(launch::kLookAtEarlyEnds);
    while (running() > 0 && !deadline.expired() && (all || failures_.empty())) {
      for (int rank = 0; rank < job_.world_size; ++rank) reap(rank);
      if (look.expired() && !ended_.empty()) {
        static_cast<void>(tell_of_early_ends(job_, ended_));
        look = Deadline::after(launch::kLookAtEarlyEnds);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void reap(int number) {
    Rank& rank = ranks_[number];
    int status = 0;
    if (rank.pid < 0 || waitpid(rank.pid, &status, WNOHANG) != rank.pid) return;
    rank.pid = -1;
    const std::string failure = end_of(number, rank, status);
    failures_ += failure;
    if (failure.empty()) ended_.push_back(number);
  }

  launch::JobSpec job_;
  std::optional<launch::JobServices> services_;
  std::vector<Rank> ranks_;
  std::vector<int> ended_;  // with 0, until they are known to have joined the others
  std::string failures_;
};

// What ranks have started ends with them, as under launch::spawn.
void kill_orphans(const std::set<pid_t>& before) {
  for (bool found = true; found;) {
    found = false;
    for (const pid_t child : children_of(getpid())) {
      if (before.contains(child)) continue;
      kill(child, SIGKILL);
      found = waitpid(child, nullptr, 0) == child;
    }
  }
}

std::string run_ranks(int world, const std::function<void(int rank)>& fn, std::chrono::milliseconds timeout,
                      std::chrono::milliseconds grace) {
  const Leftovers before = Leftovers::now();
  const std::string failures = ForkedRanks(world, fn).finish(timeout, grace);
  kill_orphans(before.children);
  expect_nothing_left(before);
  return failures;
}

}  // namespace

void run_processes(int world, const std::function<void(int rank)>& fn, std::chrono::seconds deadline) {
  EXPECT_EQ(run_ranks(world, fn, deadline, std::chrono::milliseconds(500)), "");
}

void run_processes_with_a_victim(int world, int victim,
                                 const std::function<void(int rank, const std::filesystem::path& report)>& fn,
                                 const std::function<void(const std::filesystem::path& report)>& check) {
  const SharedScratchFolder reports;
  run_processes_with_a_victim(
      world, victim, [&](int rank) { fn(rank, reports.path(std::to_string(rank))); }, "was killed by SIGKILL");
  for (int rank = 0; rank < world; ++rank) {
    if (rank != victim) check(reports.path(std::to_string(rank)));
  }
}

void run_processes_with_a_victim(int world, int victim, const std::function<void(int rank)>& fn,
                                 const std::string& end) {
  const std::string failures = run_ranks(
      world,
      [&](int rank) {
        if (rank != victim) signal(SIGTERM, SIG_IGN);  // the others get SIGTERM when one fails; they must write first
        fn(rank);
      },
      std::chrono::seconds(100), std::chrono::seconds(60));
  EXPECT_EQ(failures, end.empty() ? "" : fmt::format("rank {} {}\n", victim, end));
}

}  // namespace lockstep::test
