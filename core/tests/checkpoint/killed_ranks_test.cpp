// Ranks that train and save, and are killed at random times. LOCKSTEP_TEST_KILLS says how many times.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "lockstep/base/environment.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kFolder = "LOCKSTEP_TEST_WRITER_FOLDER";
constexpr const char* kAsynchronous = "LOCKSTEP_TEST_WRITER_ASYNCHRONOUS";
constexpr const char* kStore = "LOCKSTEP_TEST_WRITER_STORE";
constexpr int kKilledWorld = 3;
constexpr std::int64_t kElements = 200'000;
constexpr const char* kCompleted = "completed";

// Notes that a save is complete, in one write: the system keeps it when the process is killed. A kill may cut a write
// off at a page's end, so lines have 16 bytes: none lies in two pages.
void note_completed(const std::filesystem::path& folder, std::int64_t step) {
  const std::string digits = std::to_string(step);
  std::ofstream(folder / kCompleted, std::ios::app)
      << (std::string(15 - digits.size(), '0') + digits + "\n") << std::flush;
}

std::int64_t last_completed(const std::filesystem::path& folder) {
  std::ifstream file(folder / kCompleted);
  std::int64_t last = -1;
  for (std::string line; std::getline(file, line) && !file.eof();) last = std::stoll(line);
  return last;
}

void save_until_killed(const std::filesystem::path& folder, bool asynchronous) {
  const std::string store = Environment::of_process().get(kStore).value_or("");
  const ProcessGroupGuard group("", {.init_method = "file://" + store, .timeout = std::chrono::seconds(60)});
  CheckpointManager manager(folder / "runs", {.keep_last = 2, .asynchronous = asynchronous});
  const auto latest = manager.load_latest([](const auto& steps) { return all_gather_object(steps); });
  torch::nn::Linear layer(1, kElements);
  const torch::NoGradGuard no_grad;
  for (std::int64_t step = latest ? latest->step() + 1 : 0;; ++step) {
    layer->weight.fill_(static_cast<double>(step));
    const auto generators = gather_object(generator_state(), 0);
    if (group.rank() != 0) continue;
    Checkpoint state;
    state.add_model(*layer);
    state.add_generators(generators);
    manager.save(step, state);
    // An asynchronous save is complete when the next has begun.
    if (!asynchronous || step > 0) note_completed(folder, asynchronous ? step - 1 : step);
  }
}

// Not a test: the rank that KilledRanksFault kills. Without its environment variable it does nothing.
TEST(KilledRankProcess, SavesUntilItIsKilled) {
  const auto folder = Environment::of_process().get(kFolder);
  if (!folder) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if the test itself is killed
  try {
    save_until_killed(*folder, Environment::of_process().get(kAsynchronous) == "1");
  } catch (const std::exception&) {  // another rank was killed
    std::_Exit(3);
  }
}

class Ranks {
 public:
  Ranks(const std::filesystem::path& folder, int round) {
    const std::filesystem::path store = folder / ("store" + std::to_string(round));
    for (int rank = 0; rank < kKilledWorld; ++rank) {
      test::Process::Settings settings;
      settings.environment = {std::string(kFolder) + "=" + folder.native(),
                              std::string(kAsynchronous) + "=" + std::to_string(round % 2),
                              std::string(kStore) + "=" + store.native(),
                              "RANK=" + std::to_string(rank),
                              "WORLD_SIZE=" + std::to_string(kKilledWorld),
                              "LOCAL_RANK=" + std::to_string(rank),
                              "LOCAL_WORLD_SIZE=" + std::to_string(kKilledWorld)};
      processes_.push_back(std::make_unique<test::Process>(
          std::vector<std::string>{"/proc/self/exe", "--gtest_filter=KilledRankProcess.*", "--gtest_brief=1"},
          settings));
    }
  }

  bool all_run() const {
    return std::none_of(processes_.begin(), processes_.end(), [](const auto& process) { return process->ended(); });
  }
  // `victim` of kKilledWorld: all at once, as when the machine fails.
  void kill(int victim) {
    for (int rank = 0; rank < kKilledWorld; ++rank) {
      if (victim == rank || victim == kKilledWorld) ::kill(processes_[static_cast<std::size_t>(rank)]->pid(), SIGKILL);
    }
  }
  // The others notice the death, and end.
  void finish() {
    for (const auto& process : processes_) {
      const test::Finished finished = process->finish(std::chrono::seconds(90));
      EXPECT_TRUE(finished.exit_code == 137 || finished.exit_code == 3) << finished.exit_code << finished.err;
      EXPECT_EQ(finished.err.find("skipping"), std::string::npos) << finished.err;  // no damaged file
    }
  }

 private:
  std::vector<std::unique_ptr<test::Process>> processes_;
};

// Every value of the model is the step: no save has mixed two steps.
void expect_whole(const Checkpoint& state) {
  torch::nn::Linear layer(1, kElements);
  state.restore_model(*layer);
  EXPECT_TRUE(layer->weight.eq(static_cast<double>(state.step())).all().item<bool>());
}

std::ptrdiff_t entries_in(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return std::distance(begin(files), end(files));
}

TEST(KilledRanksFault, TheNewestCheckpointIsNeverOlderThanTheLastCompletedSave) {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 5;
  const test::Leftovers before = test::Leftovers::now();
  const test::ScratchFolder folder;
  CheckpointManager reader(folder.path() / "runs");
  std::mt19937 random(5);
  std::int64_t last = -1;
  for (int round = 0; round < kills; ++round) {
    Ranks ranks(folder.path(), round);
    // They have begun when a save is complete. The kill then hits the next ones at a random place.
    const std::int64_t old = last_completed(folder.path());
    ASSERT_TRUE(test::wait_for([&] { return last_completed(folder.path()) > old || !ranks.all_run(); },
                               std::chrono::seconds(90)));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ranks.kill(static_cast<int>(random() % (kKilledWorld + 1)));
    ranks.finish();
    const std::int64_t completed = last_completed(folder.path());
    testing::internal::CaptureStderr();
    const auto latest = reader.load_latest();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // no damaged file
    ASSERT_TRUE(latest);
    EXPECT_GE(latest->step(), completed);
    EXPECT_GE(latest->step(), last);
    expect_whole(*latest);
    last = latest->step();
  }
  EXPECT_GT(last, 0);
  // Each kill may leave a temporary file or an old checkpoint: the next writer removes them all.
  CheckpointManager(folder.path() / "runs", {.keep_last = 2}).save(last + 1, Checkpoint());
  EXPECT_EQ(entries_in(folder.path() / "runs"), 2);
  test::expect_nothing_left(before);
}

}  // namespace
}  // namespace lockstep::checkpoint
