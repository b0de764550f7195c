#include "sweep/run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 100s;  // far more than any run takes

std::string told(const std::string& who, const Finished& end) {
  return fmt::format("{} ended with {}:\n{}{}\n", who, end.exit_code, end.out, end.err);
}

// It stays a zombie, so that finish() still finds it.
bool has_ended(const Process& process) {
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(process.pid()), &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid != 0;
}

// Lines "point N NAME".
std::map<std::string, int> points_in(const std::string& out) {
  std::map<std::string, int> points;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, name;
    int count = 0;
    if (words >> word >> count && word == "point" && std::getline(words >> std::ws, name)) points[name] = count;
  }
  return points;
}

std::string describe(const ScriptSettings& settings) {
  return fmt::format("world {}, victim {}, {} at '{}', passing {}{}", settings.world, settings.victim,
                     settings.signal == SIGKILL ? "killed" : "frozen", settings.point, settings.passing,
                     settings.machines ? ", over machines" : "");
}

}  // namespace

Run::Run(ScriptSettings settings) : settings_(std::move(settings)), server_(comm::TcpStoreServer::start({}).value()) {
  settings_.port = server_->port();
  settings_.go_on = folder_.path("go on");
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = fmt::format("--gtest_filter={}.{}", test->test_suite_name(), test->name());
  for (settings_.rank = 0; settings_.rank < settings_.world; ++settings_.rank) {
    Process::Settings process;
    for (const auto& [name, value] : settings_.environment()) process.environment.push_back(name + "=" + value);
    ranks_.push_back(std::make_unique<Process>(std::vector<std::string>{"/proc/self/exe", filter}, process));
  }
}

void Run::kill_victim(std::chrono::microseconds after) {
  const bool ready = wait_for(
      [&] {
        return std::all_of(ranks_.begin(), ranks_.end(),
                           [](const auto& rank) { return rank->out_so_far().find("ready\n") != std::string::npos; });
      },
      kLimit);
  EXPECT_TRUE(ready) << describe(settings_);
  std::this_thread::sleep_for(after);
  kill(victim().pid(), SIGKILL);
}

std::string Run::finish() {
  std::string wrong = wait_for([&] { return survivors_are_through(); }, kLimit) ? "" : "the others do not end\n";
  // Again and again: on a busy machine the victim may stop only after the others are through.
  const auto resumed = [&] {
    kill(victim().pid(), SIGCONT);
    return has_ended(victim());
  };
  if (settings_.signal == SIGSTOP) (void)wait_for(resumed, kLimit);
  const Finished end = victim().finish(kLimit);
  points_ = points_in(end.out);
  // It may have come to its point less often than in another run.
  const bool killed = settings_.signal == SIGKILL && end.exit_code == 128 + SIGKILL;
  if (end.exit_code != 0 && !killed) wrong += told("the victim", end);
  std::ofstream(settings_.go_on) << "go on";
  for (int rank = 0; rank < settings_.world; ++rank) {
    if (rank == settings_.victim) continue;
    const Finished survivor = ranks_[rank]->finish(kLimit);
    if (survivor.exit_code != 0) wrong += told(fmt::format("rank {}", rank), survivor);
  }
  return wrong;
}

// They have ended, or wait for the victim's end.
bool Run::survivors_are_through() const {
  for (int rank = 0; rank < settings_.world; ++rank) {
    if (rank == settings_.victim || ranks_[rank]->out_so_far().find("reused\n") != std::string::npos) continue;
    if (!has_ended(*ranks_[rank])) return false;
  }
  return true;
}

void run_all(const std::vector<ScriptSettings>& scenarios) {
  const Leftovers before = Leftovers::now();
  const char* const at_once = std::getenv("LOCKSTEP_TEST_SWEEP_AT_ONCE");
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&] {
    for (;;) {
      ScriptSettings settings;
      {
        const std::lock_guard lock(mutex);
        if (next == scenarios.size()) return;
        settings = scenarios[next++];
      }
      Run run(settings);
      if (settings.kill_after.count() > 0) run.kill_victim(settings.kill_after);
      EXPECT_EQ(run.finish(), "") << describe(settings);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < (at_once == nullptr ? 6 : std::atoi(at_once)); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  expect_nothing_left(before);
}

}  // namespace lockstep::test
