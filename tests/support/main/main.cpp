// main() of the test programs. Without an option of its own it is GoogleTest's.
//
// --fork-each=SECONDS runs each test in a fork of this process, which has loaded its libraries and has one thread. So a
// test costs a fork instead of a start, which with LibTorch takes 0.2 seconds of a core, and still sees nothing of
// other tests. A test fails that crashes, takes longer than SECONDS or leaves a process behind. The line of each test
// says how long it took, and how much processor time the test and all its processes used.
//
// --write-ctest=FILE writes one CTest test for each suite, which runs it with --fork-each, or in one process if
// --whole=SUITE names it. --prefix=TEXT comes before the names, --environment=NAME=VALUE is set for the tests.
// --layer=NAME is a second label of every test. --parity-fixture=NAME is the fixture of CTest that parity suites
// require.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "launch/supervisor/descendants.h"

namespace lockstep::test {
namespace {

namespace supervisor = launch::supervisor;

struct Suite {
  std::string name;
  std::vector<std::string> tests;
  bool selected_whole = true;
};

// What --gtest_filter selects: GoogleTest finds that out when it lists tests.
std::vector<Suite> selected_suites() {
  std::fflush(stdout);
  const int out = dup(STDOUT_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  GTEST_FLAG_SET(list_tests, true);
  if (RUN_ALL_TESTS() != 0) throw std::runtime_error("GoogleTest cannot list the tests");
  GTEST_FLAG_SET(list_tests, false);
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  close(out);
  close(nowhere);
  std::vector<Suite> suites;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& from = *all.GetTestSuite(i);
    Suite suite{from.name(), {}};
    for (int j = 0; j < from.total_test_count(); ++j) {
      const testing::TestInfo& test = *from.GetTestInfo(j);
      if (test.should_run()) suite.tests.push_back(fmt::format("{}.{}", from.name(), test.name()));
    }
    suite.selected_whole = static_cast<int>(suite.tests.size()) == from.total_test_count();
    if (!suite.tests.empty()) suites.push_back(std::move(suite));
  }
  return suites;
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by SIG{}", sigabbrev_np(WTERMSIG(status)));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

// Empty: the test passed.
std::string run_in_fork(const std::string& test, std::int64_t seconds) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    GTEST_FLAG_SET(filter, test);
    std::exit(RUN_ALL_TESTS());
  }
  const std::int64_t end = supervisor::monotonic_ns() + seconds * 1'000'000'000;
  std::string failure;
  int status = 0;
  pid_t ended = 0;
  // Orphans of the test become children of this process, and end here.
  do ended = supervisor::wait_for_child(status, end);
  while (ended > 0 && ended != child);
  if (ended != child) failure = fmt::format("still ran after {} s; ", seconds);
  if (ended == child && status != 0) failure = describe(status) + "; ";
  // What the test has started may be about to end.
  const std::int64_t soon = supervisor::monotonic_ns() + 2'000'000'000;
  int ignored = 0;
  while (ended == child && supervisor::wait_for_child(ignored, soon) > 0) {
  }
  supervisor::kill_descendants(supervisor::monotonic_ns() + 30'000'000'000, [&](pid_t pid, int how) {
    if (pid != child && WIFSIGNALED(how)) failure += fmt::format("left process {} behind; ", pid);
  });
  return failure;
}

// The processor time of all descendants that have ended.
std::int64_t processor_ms() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto ms = [](const timeval& time) { return std::int64_t{1000} * time.tv_sec + time.tv_usec / 1000; };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

int run_each_in_fork(std::int64_t seconds) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int failed = 0;
  for (const Suite& suite : selected_suites()) {
    for (const std::string& test : suite.tests) {
      const std::int64_t start = supervisor::monotonic_ns();
      const std::int64_t used_before = processor_ms();
      const std::string failure = run_in_fork(test, seconds);
      if (!failure.empty()) ++failed;
      const std::string took = fmt::format("(processor {} ms, {} ms)", processor_ms() - used_before,
                                           (supervisor::monotonic_ns() - start) / 1'000'000);
      if (failure.empty()) fmt::print("[       OK ] {} {}\n", test, took);
      if (!failure.empty()) fmt::print("[  FAILED  ] {} {}{}\n", test, failure, took);
    }
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

struct Options {
  std::string ctest_file, prefix, environment, layer, parity_fixture;
  std::set<std::string> whole, waits;
  std::int64_t seconds = 0;
};

void write_ctest(const std::string& program, const Options& options) {
  std::ofstream file(options.ctest_file);
  for (const Suite& suite : selected_suites()) {
    std::string label = "unit";
    for (const char* ending : {"Multi", "Fault", "Parity", "Scheduler"}) {
      if (suite.name.ends_with(ending)) label = ending;
    }
    label[0] = static_cast<char>(std::tolower(label[0]));
    std::string filter = suite.name + ".*";
    if (!suite.selected_whole) filter = fmt::format("{}", fmt::join(suite.tests, ":"));
    const std::string fork = fmt::format(" --fork-each={}", label == "unit" ? 120 : 300);
    const std::string name = options.prefix + suite.name;
    file << fmt::format("add_test([[{}]] [[{}]] [[--gtest_filter={}]]{})\n", name, program, filter,
                        options.whole.contains(suite.name) ? "" : fork);
    // Suites that mostly wait take half of a suite's share of the machine: see run_tests in tools/build.sh. A scheduler
    // has one set of ports and folders on a machine. The bound of a test is that of --fork-each.
    const bool waits = label == "fault" || options.waits.contains(suite.name);
    file << fmt::format(
        "set_tests_properties([[{}]] PROPERTIES LABELS \"{};layer-{}\" TIMEOUT {} PROCESSORS {} RESOURCE_LOCK [[{}]] "
        "ENVIRONMENT [[{}]] WORKING_DIRECTORY [[{}]] FIXTURES_REQUIRED [[{}]])\n",
        name, label, options.layer, options.whole.contains(suite.name) ? 300 : 3600, waits ? 1 : 2,
        label == "scheduler" ? label : "", options.environment, std::filesystem::current_path().native(),
        label == "parity" ? options.parity_fixture : "");
  }
}

std::optional<std::string> value_of(std::string_view argument, std::string_view name) {
  if (!argument.starts_with(name)) return std::nullopt;
  return std::string(argument.substr(name.size()));
}

int run(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    // The forks print their failures only. GoogleTest asks for its printer before a fork can.
    if (value_of(argv[i], "--fork-each=")) GTEST_FLAG_SET(brief, true);
  }
  testing::InitGoogleTest(&argc, argv);
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (auto value = value_of(argv[i], "--fork-each=")) {
      options.seconds = std::stoll(*value);
    } else if (auto value = value_of(argv[i], "--write-ctest=")) {
      options.ctest_file = *value;
    } else if (auto value = value_of(argv[i], "--prefix=")) {
      options.prefix = *value;
    } else if (auto value = value_of(argv[i], "--environment=")) {
      options.environment = *value;
    } else if (auto value = value_of(argv[i], "--layer=")) {
      options.layer = *value;
    } else if (auto value = value_of(argv[i], "--parity-fixture=")) {
      options.parity_fixture = *value;
    } else if (auto value = value_of(argv[i], "--whole=")) {
      options.whole.insert(*value);
    } else if (auto value = value_of(argv[i], "--waits=")) {
      options.waits.insert(*value);
    }
  }
  if (!options.ctest_file.empty()) {
    write_ctest(std::filesystem::canonical("/proc/self/exe"), options);
    return EXIT_SUCCESS;
  }
  // A death test starts the program again, with the same options.
  const bool is_dying = !GTEST_FLAG_GET(internal_run_death_test).empty();
  return options.seconds > 0 && !is_dying ? run_each_in_fork(options.seconds) : RUN_ALL_TESTS();
}

}  // namespace
}  // namespace lockstep::test

int main(int argc, char** argv) {
  return lockstep::test::run(argc, argv);
}
