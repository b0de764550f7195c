#include "support/process_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "lockstep/launch/spawn.h"
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

std::string current_test_name() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) throw std::logic_error("run_processes is for the body of a test");
  return fmt::format("{}.{}", test->test_suite_name(), test->name());
}

// Calls are counted within a test: the ranks run that test alone, the parent may have run others before.
int next_call_number(const std::string& test) {
  static std::string current;
  static int calls = 0;
  if (test != current) calls = 0;
  current = test;
  return ++calls;
}

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
    // Other programs use /dev/shm at the same time; our entries would have our name in theirs.
    const std::string name = entry.path().filename();
    if (name.find("lockstep") != std::string::npos) result.shared_memory.insert(name);
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

// Runs this test again, from the start up to its next spawn.
launch::SpawnOptions spawn_options(int world, const std::string& test) {
  launch::SpawnOptions options;
  options.nprocs = world;
  options.call_number = next_call_number(test);
  options.argv = {testing::internal::GetArgvs().front(), "--gtest_filter=" + test, "--gtest_also_run_disabled_tests",
                  "--gtest_brief=1"};
  // Sharding is up to the parent, and the report file is the parent's.
  options.environment = {{"GTEST_TOTAL_SHARDS", "1"}, {"GTEST_SHARD_INDEX", "0"}, {"GTEST_OUTPUT", ""}};
  return options;
}

// With LOCKSTEP_TEST_MACHINES=n this rank acts as if it ran on machine rank % n, unless LOCKSTEP_MACHINE is set.
void take_place(int rank) {
  const char* machines = std::getenv("LOCKSTEP_TEST_MACHINES");
  if (machines == nullptr) return;
  ::setenv("LOCKSTEP_MACHINE", fmt::format("machine{}", rank % std::atoi(machines)).c_str(), /*replace=*/0);
}

}  // namespace

void run_processes(int world, const std::function<void(int rank)>& fn, std::chrono::seconds deadline) {
  const std::string test = current_test_name();
  const Leftovers before = Leftovers::now();
  launch::SpawnOptions options = spawn_options(world, test);
  options.timeout = deadline;
  options.grace = std::chrono::milliseconds(500);
  const Status status = launch::spawn(
      [&fn](int rank) {
        const FailureCollector& failures = FailureCollector::start();
        take_place(rank);
        fn(rank);
        if (!failures.text().empty()) throw std::runtime_error("test failures:" + failures.text());
      },
      options);
  EXPECT_TRUE(status.ok()) << status.message();
  expect_nothing_left(before);
}

void run_processes_with_a_victim(int world, int victim,
                                 const std::function<void(int rank, const std::filesystem::path& report)>& fn,
                                 const std::function<void(const std::filesystem::path& report)>& check) {
  const std::string test = current_test_name();
  const Leftovers before = Leftovers::now();
  const SharedScratchFolder reports;
  launch::SpawnOptions options = spawn_options(world, test);
  options.timeout = std::chrono::seconds(100);
  options.grace = std::chrono::seconds(60);
  const Status status = launch::spawn(
      [&](int rank) {
        take_place(rank);
        if (rank != victim) signal(SIGTERM, SIG_IGN);  // spawn stops the others when one fails; they must write first
        fn(rank, reports.path(std::to_string(rank)));
      },
      options);
  EXPECT_NE(status.message().find("SIGKILL"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("rank " + std::to_string(victim)), std::string::npos) << status.message();
  for (int rank = 0; rank < world; ++rank) {
    if (rank != victim) check(reports.path(std::to_string(rank)));
  }
  expect_nothing_left(before);
}

}  // namespace lockstep::test
