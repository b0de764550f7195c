// What is read from the log of a run: of runs that follow one another in a folder, and from damaged files.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/report/run.h"
#include "lockstep/report/run_log.h"
#include "report/contains.h"
#include "report/run_logs.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

// What a resumed run repeats replaces what was after its checkpoint.
TEST(ReadRun, AResumedRunReplacesWhatItRepeats) {
  const test::ScratchFolder folder;
  const auto epochs = [](RunLog& log, std::int64_t first, std::int64_t last, double loss) {
    for (std::int64_t epoch = first; epoch <= last; ++epoch) {
      for (std::int64_t step = 10 * epoch; step < 10 * (epoch + 1); ++step) log.step(epoch, step, {{"loss", loss}});
      log.epoch(epoch, {.scalars = {{"loss", loss}}});
      log.evaluation(epoch, {.scalars = {{"loss", loss}}});
    }
  };
  {
    RunLog log = open(folder);
    log.start({});
    epochs(log, 0, 4, 1.0);
  }
  EXPECT_EQ(read(folder).state, RunState::kInterrupted);
  {
    RunLog log = open(folder);
    log.start({.first_epoch = 3});
    EXPECT_EQ(read(folder).epochs.size(), 3U);
    EXPECT_EQ(read(folder).steps.at("loss").size(), 30U);
    epochs(log, 3, 3, 2.0);
    log.note("resumed");
    log.fail("a disk full of cats");
  }
  RunRecord run = read(folder);
  EXPECT_EQ(run.state, RunState::kFailed);
  EXPECT_EQ(run.error, "a disk full of cats");
  EXPECT_EQ(run.sessions.size(), 2U);
  EXPECT_EQ(run.notes.size(), 1U);
  ASSERT_EQ(run.epochs.size(), 4U);
  EXPECT_EQ(run.steps.at("loss").size(), 40U);
  EXPECT_EQ(run.steps.at("loss").back().value, 2.0);
  EXPECT_EQ(scalar(run.evaluations.back().scalars, "loss"), 2.0);
  // In the middle of an epoch the steps before it count.
  open(folder).start({.first_epoch = 3, .first_step = 35});
  run = read(folder);
  EXPECT_EQ(run.epochs.size(), 3U);
  EXPECT_EQ(run.steps.at("loss").size(), 35U);
  EXPECT_EQ(run.sessions.size(), 3U);
  // A new run in the folder replaces all.
  open(folder).start({});
  run = read(folder);
  EXPECT_TRUE(run.steps.empty());
  EXPECT_EQ(run.sessions.size(), 1U);
  EXPECT_TRUE(run.notes.empty());
  EXPECT_EQ(run.error, "");
}

// Someone has forgotten to resume, and that run has ended before it had saved anything.
TEST(ReadRun, ARunThatSavedNothingDoesNotReplaceTheOneBefore) {
  const test::ScratchFolder folder;
  const auto log_epochs = [&](std::int64_t first, std::int64_t end) {
    RunLog log = open(folder);
    log.start({.first_epoch = first, .first_step = 10 * first});
    for (std::int64_t epoch = first; epoch < end; ++epoch) {
      log.step(epoch, 10 * epoch, {{"loss", 1.0 + static_cast<double>(epoch)}});
      log.epoch(epoch, {.seconds = 1, .samples = 8});
    }
  };
  log_epochs(0, 3);
  {
    RunLog forgotten = open(folder);
    forgotten.start({});
    forgotten.step(0, 0, {{"loss", 7.0}});
  }
  EXPECT_EQ(read(folder).steps.at("loss").size(), 1U);
  // A damaged line changes nothing.
  const std::string whole = test::read_file(folder.path("run.jsonl"));
  folder.write("run.jsonl", whole + R"({"event":"start","first_epoch":3,"first_step":30,"command":7})" + "\n");
  EXPECT_EQ(read(folder).epochs.size(), 0U);
  EXPECT_EQ(read(folder).bad_lines, 1);
  folder.write("run.jsonl", whole);
  log_epochs(3, 5);
  RunRecord run = read(folder);
  EXPECT_EQ(run.epochs.size(), 5U);
  EXPECT_EQ(run.sessions.size(), 2U);
  ASSERT_EQ(run.steps.at("loss").size(), 5U);
  EXPECT_EQ(run.steps.at("loss").front().value, 1.0);
  // One that has ended an epoch has replaced it.
  log_epochs(0, 1);
  log_epochs(1, 2);
  run = read(folder);
  EXPECT_EQ(run.epochs.size(), 2U);
  EXPECT_EQ(run.sessions.size(), 2U);
}

TEST(ReadRun, LeavesOutDamagedLinesAndKeepsTheOthers) {
  const test::ScratchFolder folder;
  const std::vector<std::string> bad = {
      "{",
      "null",
      "[]",
      "1e999",
      "{}",
      R"({"event":7})",
      R"({"event":"step","epoch":"one","step":1,"scalars":{}})",
      R"({"event":"step","epoch":-1,"step":1,"scalars":{}})",
      R"({"event":"step","epoch":1,"step":1,"scalars":{"loss":"high"}})",
      R"({"event":"step","epoch":1,"step":1,"scalars":{"loss":null}})",
      R"({"event":"epoch","epoch":1e300})",
      R"({"event":"times","epoch":1,"ranks":[7]})",
      R"({"event":"confusion","epoch":1,"classes":2,"cells":[[1]]})",
      R"({"event":"start","command":"a string"})",
      R"({"event":"note","text":7})",
      std::string(100000, '['),
      std::string("\0\0\0", 3),
  };
  std::string text;
  for (const std::string& line : bad) text += line + "\n";
  text += R"({"event":"of a later version","what":[1,2]})"
          "\n\n \r\n";
  text += R"({"event":"confusion","epoch":1,"classes":2,"cells":[[0,0,5],[2,0,1],[-1,0,1],[0,1,-3]]})"
          "\n";
  text += R"({"event":"step","epoch":1,"step":1,"scalars":{"loss":0.5}})";  // no newline
  folder.write("run.jsonl", text);
  const RunRecord run = read(folder);
  EXPECT_EQ(run.bad_lines, static_cast<std::int64_t>(bad.size()));
  EXPECT_EQ(run.confusion.size(), 1U);
  EXPECT_EQ(run.steps.at("loss").size(), 1U);
}

// `levels` lists within one another.
std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

// Half a million levels would overflow the stack where a value is written or copied.
TEST(ReadRun, LeavesOutLinesThatAreNestedTooDeeply) {
  const test::ScratchFolder folder;
  const auto start = [](const std::string& value) {
    return R"({"event":"start","configuration":{"value":)" + value + "}}\n";
  };
  folder.write("run.jsonl", start(nested(500'000)) + start(nested(15)) + start(nested(14)));
  EXPECT_EQ(read(folder).bad_lines, 2);
  EXPECT_EQ(read(folder).configuration, (Values{{"value", nested(14)}}));
  // Brackets in texts are no levels.
  const std::string text = R"("\"[[[[[[[[[[[[[[[[[[[[\\")";
  folder.write("run.jsonl", start(text));
  EXPECT_EQ(read(folder).bad_lines, 0);
  EXPECT_EQ(read(folder).configuration, (Values{{"value", R"("[[[[[[[[[[[[[[[[[[[[\)"}}));
}

TEST(ReadRun, SaysWhatIsWrongWithTheFile) {
  const test::ScratchFolder folder;
  EXPECT_EQ(read_run(folder.path()).status().code(), ErrorCode::kNotFound);
  folder.write("run.jsonl", "");
  EXPECT_EQ(read_run(folder.path()).status().code(), ErrorCode::kCorrupt);
  folder.write("run.jsonl", "hello\n");
  const Status status = read_run(folder.path("run.jsonl")).status();
  EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
  EXPECT_PRED2(contains, status.message(), "run.jsonl: expected lines of JSON with the events of a run, found none");
}

}  // namespace
}  // namespace lockstep::report
