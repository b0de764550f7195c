// `lockstep train` under `lockstep run`: processes of a real training get SIGKILL. Each case trains a small model twice
// on 3 ranks, which takes some seconds on two cores.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "lockstep/report/run.h"
#include "support/read_file.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

using Words = std::vector<std::string>;

struct Death {
  std::int64_t step;  // of which the log knows when it happens
  int rank;
};

struct Case {
  Words launch;     // options of `lockstep run`
  int world_after;  // how many ranks there are at the end
  std::vector<Death> deaths;
  Words train = {};
};

// The processes of this training that the launcher has started as this rank, and that are no newcomers.
std::vector<pid_t> workers(const std::string& config, int rank) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().native();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    const std::string command = read_file(entry.path() / "cmdline");
    const std::string environment = '\0' + read_file(entry.path() / "environ");
    const auto has = [&](const std::string& variable) {
      return environment.find('\0' + variable) != std::string::npos;
    };
    if (command.find("train") == std::string::npos || command.find(config) == std::string::npos) continue;
    if (has("RANK=" + std::to_string(rank) + '\0') && has("WORLD_SIZE=3") && !has("LOCKSTEP_NEWCOMER="))
      found.push_back(pid);
  }
  return found;
}

class TrainElasticFault : public TrainProgram, public testing::WithParamInterface<Case> {
 protected:
  Words command(const Case& which, const std::string& output) const {
    Words words{LOCKSTEP_PROGRAM, "run", "--standalone", "--nproc-per-node", "3"};
    words.insert(words.end(), which.launch.begin(), which.launch.end());
    words.insert(words.end(), {LOCKSTEP_PROGRAM, "train", "--config", scratch_.path("config.yaml"), "--elastic",
                               "--output", scratch_.path(output)});
    words.insert(words.end(), which.train.begin(), which.train.end());
    return words;
  }
  std::int64_t steps_done(const std::string& output) const {
    const auto run = report::read_run(scratch_.path(output));
    if (!run.ok() || !run.value().steps.contains("loss")) return 0;
    return run.value().steps.at("loss").back().step + 1;
  }
  Finished run(const Case& which, const std::string& output) const {
    Process process(command(which, output), {.environment = {"OMP_NUM_THREADS=1"}});
    for (const Death& death : which.deaths) {
      while (!process.ended() && steps_done(output) < death.step)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      for (const pid_t pid : workers(scratch_.path("config.yaml"), death.rank)) ::kill(pid, SIGKILL);
    }
    Finished end = process.finish(std::chrono::seconds(150));
    EXPECT_TRUE(process.wait_until_no_descendant());
    return end;
  }
  // That the log has each step, epoch and evaluation once, and says what has happened.
  void expect_whole_log(const std::string& output, const Case& which) const {
    const auto read = report::read_run(scratch_.path(output));
    ASSERT_TRUE(read.ok()) << read.status().message();
    const report::RunRecord& run = read.value();
    EXPECT_EQ(run.state, report::RunState::kFinished);
    EXPECT_EQ(run.bad_lines, 0);
    std::vector<std::int64_t> steps;
    for (const report::Point& point : run.steps.at("loss")) steps.push_back(point.step);
    std::vector<std::int64_t> expected(18);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::int64_t>(i);
    EXPECT_EQ(steps, expected);
    ASSERT_EQ(run.epochs.size(), 3U);
    ASSERT_EQ(run.evaluations.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(run.epochs[i].samples, 72);
      EXPECT_EQ(run.evaluations[i].samples, 24);
    }
    EXPECT_EQ(run.sessions.back().world_size, which.world_after);
    EXPECT_EQ(run.times.back().ranks.size(), static_cast<std::size_t>(which.world_after));
    const bool is_told = std::any_of(run.notes.begin(), run.notes.end(), [](const report::Note& note) {
      return note.text.find("in a new world") != std::string::npos;
    });
    EXPECT_EQ(is_told, !which.deaths.empty());
    EXPECT_TRUE(std::filesystem::exists(scratch_.path(output + "/report.html")));
  }
};

TEST_P(TrainElasticFault, GoesOn) {
  const Case& which = GetParam();
  write("  mixup_alpha: 0.2\n  seed: 3\nschedule: {name: cosine, interval: step}\n");
  const Words small{"--epochs", "3", "--batch-size", "4"};
  Case loud = which;
  loud.train.insert(loud.train.end(), small.begin(), small.end());
  Case quiet = loud;
  quiet.deaths.clear();
  quiet.world_after = 3;
  const Finished expected = run(quiet, "quiet");
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  expect_whole_log("quiet", quiet);
  const Finished found = run(loud, "loud");
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.err.find("signal SIGKILL (9)"), std::string::npos) << found.err << found.out;
  expect_whole_log("loud", loud);
  const std::string model = read_file(scratch_.path("loud/model.safetensors"));
  EXPECT_FALSE(model.empty());
  // With a rank fewer, gradients are added in another order.
  if (which.world_after == 3) {
    EXPECT_TRUE(model == read_file(scratch_.path("quiet/model.safetensors"))) << found.out << found.err;
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, TrainElasticFault,
    testing::Values(Case{{"--min-workers", "2", "--newcomers", "1"}, 3, {{4, 1}}},
                    // Rank 0, which writes the log and the checkpoints; and another in a later epoch.
                    Case{{"--min-workers", "2", "--newcomers", "2"}, 3, {{3, 0}, {9, 2}}, {"--every-steps", "1"}},
                    Case{{"--min-workers", "2"}, 2, {{8, 0}}}));

TEST_F(TrainProgram, NewcomersNeedElastic) {
  const Finished end =
      run_program({LOCKSTEP_PROGRAM, "run", "--standalone", "--nproc-per-node", "2", "--min-workers", "1",
                   "--newcomers", "1", LOCKSTEP_PROGRAM, "train", "--config", scratch_.path("config.yaml")});
  EXPECT_EQ(end.exit_code, 1) << end.err;
  EXPECT_NE(end.err.find("trainer.elastic: expected true under lockstep run --newcomers, found false"),
            std::string::npos)
      << end.err;
  expect_error({"--elastic", "--batch-per-machine", "--sync-batch-norm"}, 2,
               {"trainer.batch_per_machine: expected false with trainer.elastic",
                "model.sync_batch_norm: expected false with trainer.elastic"});
}

}  // namespace
}  // namespace lockstep::test
