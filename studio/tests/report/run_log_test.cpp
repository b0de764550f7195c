// The log of a run, written and read back; what damages it, and what it survives.
#include "lockstep/report/run_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/report/run.h"
#include "report/contains.h"
#include "report/run_logs.h"
#include "support/full_disk.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

using test::read_file;
using test::ScratchFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The messages that Lockstep logs while it lives.
class CaughtLog {
 public:
  CaughtLog() {
    log::set_output([this](std::string_view line) { lines.emplace_back(line); });
  }
  ~CaughtLog() { log::set_output({}); }
  CaughtLog(const CaughtLog&) = delete;
  CaughtLog& operator=(const CaughtLog&) = delete;

  std::vector<std::string> lines;
};

TEST(RunLog, IsReadBackAsItWasWritten) {
  const ScratchFolder folder;
  {
    RunLog log = open(folder);
    log.start({.name = "first run",
               .configuration = {{"optimizer.lr", 0.1}, {"epochs", 2}, {"pretrained", false}, {"model", "resnet18"}},
               .versions = {{"torch", "2.15.0"}},
               .world_size = 2,
               .classes = {"cat", "dog"}});
    log.step(0, 0, {{"loss", 0.5}, {"lr", 0.1}});
    log.step(0, 1, {{"loss", kNan}, {"lr", kInfinity}});
    log.epoch(0, {.seconds = 1.5, .samples = 100, .scalars = {{"loss", 0.25}}});
    log.evaluation(0, {.seconds = 0.5, .samples = 10, .scalars = {{"accuracy", 0.75}}});
    const std::vector<RankTimes> times = {{1, "b", {{"input", 0.25}}}, {0, "a", {{"compute", 1.0}, {"saving", 2.0}}}};
    log.times(0, times);
    log.confusion(0, std::vector<std::int64_t>{5, 1, 0, 4});
    log.note("a note");
    EXPECT_EQ(read(folder).state, RunState::kRunning);
    log.end({{"accuracy", 0.75}});
    EXPECT_TRUE(log.status().ok());
    EXPECT_EQ(log.path(), folder.path() / kRunLogName);
  }
  const RunRecord run = read(folder);
  EXPECT_EQ(run.name, "first run");
  EXPECT_EQ(run.state, RunState::kFinished);
  EXPECT_EQ(run.configuration,
            (Values{{"optimizer.lr", 0.1}, {"epochs", 2}, {"pretrained", false}, {"model", "resnet18"}}));
  ASSERT_EQ(run.versions.size(), 2U);
  EXPECT_EQ(run.versions[1].first, "lockstep");
  EXPECT_EQ(run.classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_FALSE(run.command.empty());
  ASSERT_EQ(run.sessions.size(), 1U);
  EXPECT_EQ(run.sessions[0].world_size, 2);
  ASSERT_EQ(run.steps.at("loss").size(), 2U);
  EXPECT_EQ(run.steps.at("loss")[0].value, 0.5);
  EXPECT_TRUE(std::isnan(run.steps.at("loss")[1].value));
  EXPECT_EQ(run.steps.at("lr")[1].value, kInfinity);
  ASSERT_EQ(run.epochs.size(), 1U);
  EXPECT_EQ(run.epochs[0].seconds, 1.5);
  EXPECT_EQ(run.epochs[0].samples, 100);
  EXPECT_EQ(scalar(run.evaluations.at(0).scalars, "accuracy"), 0.75);
  EXPECT_TRUE(std::isnan(scalar(run.evaluations.at(0).scalars, "loss")));
  ASSERT_EQ(run.times.at(0).ranks.size(), 2U);
  EXPECT_EQ(run.times[0].ranks[0].host, "a");
  EXPECT_EQ(run.times[0].ranks[0].seconds, (Scalars{{"compute", 1.0}, {"saving", 2.0}}));
  EXPECT_EQ(run.confusion.size(), 3U);
  EXPECT_EQ(run.confusion_classes, 2);
  EXPECT_EQ(run.notes.at(0).text, "a note");
  EXPECT_EQ(run.results, (Scalars{{"accuracy", 0.75}}));
  EXPECT_EQ(run.bad_lines, 0);
}

// For example one for each parameter. Time that grew with the square of their number would be more than the test has.
TEST(RunLog, TakesAnyNumberOfScalars) {
  const ScratchFolder folder;
  Scalars many;
  for (int i = 0; i < 500'000; ++i) many.emplace_back("scalar " + std::to_string(i), i);
  open(folder).epoch(0, {.scalars = many});
  const RunRecord run = read(folder);
  EXPECT_EQ(run.bad_lines, 0);
  EXPECT_TRUE(run.epochs.at(0).scalars == many);
}

TEST(RunLog, WithoutAFolderWritesNothing) {
  RunLog log;
  log.start({});
  log.step(0, 0, {{"loss", 1.0}});
  log.end();
  EXPECT_TRUE(log.path().empty());
  EXPECT_TRUE(log.status().ok());
}

TEST(RunLog, LeavesOutAConfusionMatrixOfAnotherSize) {
  const ScratchFolder folder;
  RunLog log = open(folder);
  const CaughtLog caught;
  log.confusion(0, std::vector<std::int64_t>(3));
  log.start({.classes = {"a", "b", "c"}});
  log.confusion(0, std::vector<std::int64_t>(4));
  ASSERT_EQ(caught.lines.size(), 2U);
  EXPECT_PRED2(contains, caught.lines[0], "of 3 counts is left out; expected a square");
  EXPECT_PRED2(contains, caught.lines[1], "of 4 counts is left out; expected 3 x 3, for 3 classes");
  EXPECT_EQ(read(folder).confusion_epoch, -1);
}

TEST(RunLog, RemovesAnUnfinishedLineAndAppends) {
  const ScratchFolder folder;
  open(folder).note("kept");
  const std::string whole = read_file(folder.path("run.jsonl"));
  for (const std::string& rest : {std::string("{\"event\":\"no"), std::string(200000, '\0')}) {
    folder.write("run.jsonl", whole + rest);
    open(folder).note("next");
    const std::string text = read_file(folder.path("run.jsonl"));
    EXPECT_TRUE(text.starts_with(whole));
    EXPECT_EQ(lines_of(text).size(), 2U);
    EXPECT_EQ(read(folder).notes.size(), 2U);
    EXPECT_EQ(read(folder).bad_lines, 0);
  }
  folder.write("run.jsonl", "{\"never ended");
  open(folder).note("alone");
  EXPECT_EQ(read(folder).notes.size(), 1U);
}

TEST(RunLog, LeavesWhatIsNotALogAlone) {
  const ScratchFolder folder;
  const auto error = [&] {
    const Result<RunLog> log = RunLog::open(folder.path());
    return log.ok() ? "none" : log.status().message();
  };
  folder.write("run.jsonl", "my notes");
  EXPECT_PRED2(contains, error(), "run.jsonl: expected a log of JSON lines, or no file; found a file that begins with");
  EXPECT_EQ(read_file(folder.path("run.jsonl")), "my notes");
  std::filesystem::remove(folder.path("run.jsonl"));
  ASSERT_EQ(::mkfifo(folder.path("run.jsonl").c_str(), 0600), 0);
  EXPECT_PRED2(contains, error(), "found a FIFO");
  std::filesystem::remove(folder.path("run.jsonl"));
  std::filesystem::create_directory(folder.path("run.jsonl"));
  EXPECT_PRED2(contains, error(), "found a folder");
  const Result<RunLog> below = RunLog::open(folder.path() / "run.jsonl" / "a" / "b");
  EXPECT_TRUE(below.ok());
  folder.write("file", "");
  EXPECT_PRED2(contains, RunLog::open(folder.path() / "file" / "a").status().message(), "cannot make the run's folder");
}

TEST(RunLog, HasOneWriter) {
  const ScratchFolder folder;
  {
    RunLog log = open(folder);
    const Result<RunLog> second = RunLog::open(folder.path());
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), ErrorCode::kUnavailable);
    EXPECT_PRED2(contains, second.status().message(), "another process writes this log");
    // A fork writes nothing, and does not hold the lock longer.
    const pid_t child = ::fork();
    if (child == 0) {
      log.note("from the fork");
      ::pause();
    }
    log.note("from the rank");
    EXPECT_EQ(read(folder).notes.size(), 1U);
    log = RunLog();
    // The fork releases the lock when it begins to run.
    EXPECT_TRUE(test::wait_for([&] { return RunLog::open(folder.path()).ok(); }));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(read(folder).notes.size(), 1U);
}

TEST(RunLog, ThreadsWriteWholeLines) {
  const ScratchFolder folder;
  {
    RunLog log = open(folder);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log] {
        for (int i = 0; i < 200; ++i) log.note(std::string(static_cast<std::size_t>(i), 'x'));
      });
    }
  }
  EXPECT_EQ(read(folder).notes.size(), 800U);
  EXPECT_EQ(read(folder).bad_lines, 0);
}

// One warning, whole lines only, and lines again when there is room again.
TEST(RunLogFault, AFullDiskIsOneWarning) {
  const ScratchFolder folder;
  RunLog log = open(folder);
  log.note("before");
  const CaughtLog caught;
  {
    const test::FileSizeLimit limit(std::filesystem::file_size(log.path()) + 20);
    for (int i = 0; i < 5; ++i) log.note("does not fit");
    EXPECT_EQ(lines_of(read_file(log.path())).size(), 1U);
  }
  log.note("after");
  ASSERT_EQ(caught.lines.size(), 1U);
  EXPECT_PRED2(contains, caught.lines[0], "run.jsonl: cannot write: File too large");
  EXPECT_FALSE(log.status().ok());
  const RunRecord run = read(folder);
  ASSERT_EQ(run.notes.size(), 2U);
  EXPECT_EQ(run.notes[1].text, "after");
  EXPECT_EQ(run.bad_lines, 0);
}

TEST(RunLogFault, ADiskWithoutRoomKeepsWholeLines) {
  const test::SmallDisk disk(64 << 10);
  const CaughtLog caught;
  {
    RunLog log = RunLog::open(disk.path("run")).value();
    for (int i = 0; i < 1000; ++i) log.note(std::string(500, 'x'));
    log.end();
  }
  ASSERT_EQ(caught.lines.size(), 1U);
  EXPECT_PRED2(contains, caught.lines[0], "No space left on device");
  const Result<RunRecord> run = read_run(disk.path("run"));
  ASSERT_TRUE(run.ok());
  EXPECT_GT(run.value().notes.size(), 50U);
  EXPECT_EQ(run.value().bad_lines, 0);
}

TEST(RunLogFault, AKilledRunHasNoDamagedLines) {
  const ScratchFolder folder;
  for (int round = 0; round < 5; ++round) {
    const std::size_t before = read_file(folder.path("run.jsonl")).size();
    const pid_t child = ::fork();
    if (child == 0) {
      RunLog log = RunLog::open(folder.path()).value();
      // Not forever: a parent that gets no time would have a large file to read.
      for (int i = 0; i < 5000; ++i) log.step(0, i, {{"loss", 1.0 / i}});
      ::pause();
    }
    while (read_file(folder.path("run.jsonl")).size() < before + 20000) std::this_thread::yield();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const RunRecord run = read(folder);
    EXPECT_EQ(run.bad_lines, 0);
    EXPECT_EQ(run.state, RunState::kInterrupted);
  }
}

// The kernel may cut the last line of a killed process off. Readers do not count it, and the next log removes it.
TEST(RunLogFault, ALineThatAKillCutOffIsNoDamage) {
  const ScratchFolder folder;
  {
    RunLog log = open(folder);
    log.note("whole");
  }
  const std::string whole = read_file(folder.path("run.jsonl"));
  for (std::size_t cut = 1; cut + 1 < whole.size(); ++cut) {
    folder.write("run.jsonl", whole + whole.substr(0, cut));
    ASSERT_EQ(read(folder).bad_lines, 0) << cut;
    ASSERT_EQ(read(folder).notes.size(), 1U) << cut;
  }
  {
    RunLog log = open(folder);
    log.note("after");
  }
  EXPECT_EQ(read(folder).bad_lines, 0);
  ASSERT_EQ(read(folder).notes.size(), 2U);
  EXPECT_EQ(read(folder).notes[1].text, "after");
}

// Every line is JSON as all readers know it.
TEST(RunLog, LinesAreJson) {
  const ScratchFolder folder;
  {
    RunLog log = open(folder);
    log.start({.name = "bytes \xff\xfe and \"quotes\"\n", .configuration = {{"rate", kInfinity}, {"rate", 1}}});
    log.step(0, 0, {{"loss", -kInfinity}});
    log.note("\xc3(.png");
  }
  for (const std::string& line : lines_of(read_file(folder.path("run.jsonl")))) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << line;
    EXPECT_TRUE(json.at("event").is_string());
    EXPECT_GT(json.at("time").get<double>(), 1e9);
  }
  EXPECT_EQ(read(folder).name, "bytes \xef\xbf\xbd\xef\xbf\xbd and \"quotes\"\n");
  EXPECT_EQ(read(folder).configuration, (Values{{"rate", 1}}));
}

TEST(RunFolder, IsTheLaunchersWhereItWantsOne) {
  EXPECT_EQ(run_folder("mine"), "mine");
  ::setenv("LOCKSTEP_RUN_FOLDER", "/tmp/theirs", 1);
  EXPECT_EQ(run_folder("mine"), "/tmp/theirs");
  ::unsetenv("LOCKSTEP_RUN_FOLDER");
}

}  // namespace
}  // namespace lockstep::report
