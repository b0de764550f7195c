// The recorder's memory: what is read from it, what an end does, and files that hold anything.
#include "flight/recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "flight/export.h"
#include "flight/record.h"
#include "flight/report.h"
#include "support/read_file.h"
#include "support/run_each.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using flight::Clock;
using flight::Op;
using flight::Outcome;

// The recorder of this process is a file in the folder; an empty one, as a launcher makes it.
std::string use_file(const ScratchFolder& folder) {
  std::string path = folder.path("rank.flight");
  folder.write("rank.flight", "");
  setenv("LOCKSTEP_RECORDER", path.c_str(), 1);
  return path;
}

flight::RankRecord read(const std::string& path) {
  auto record = flight::read_record(path);
  EXPECT_TRUE(record.ok()) << record.status().message();
  return record.ok() ? std::move(record).value() : flight::RankRecord();
}

TEST(FlightRecorder, HoldsTheLastStepsAndTheTimeOfInput) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  flight::end_step();  // before there is a group: nobody records
  EXPECT_EQ(std::filesystem::file_size(path), 0U);
  flight::add_group("world", "lockstep", 0, 1, {});
  constexpr std::size_t kDone = 2 * flight::kSteps + 7;
  for (std::size_t i = 0; i < kDone; ++i) {
    {
      const flight::InputTime input;
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    flight::end_step();
  }
  const flight::RankRecord record = read(path);
  EXPECT_EQ(record.steps_done, kDone);
  ASSERT_EQ(record.steps.size(), flight::kSteps);
  EXPECT_GE(record.input, kDone * 10'000);
  EXPECT_EQ(record.steps.back().input, record.input);
  for (std::size_t i = 1; i < record.steps.size(); ++i) {
    EXPECT_GE(record.steps[i].ended, record.steps[i - 1].ended);
    EXPECT_GE(record.steps[i].input, record.steps[i - 1].input + 10'000);
  }
}

TEST(FlightRecorder, AFileHoldsGroupsAndOperations) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const std::vector<int> even{0, 2, 4};
  const std::vector<int> odd_ones{7, 1, 5};
  const auto group = flight::add_group("even", "lockstep", 1, 3, even);
  const auto other = flight::add_group(std::string(300, 'x') + "\n", "mpi", 2, 3, odd_ones);
  group.add_text(1, "src/train.cpp:41");
  group.add_text(2, "DDP: fc1.weight");
  const auto done = group.begin(
      {.op = Op::kAllReduce, .type = 6, .waits = true, .number = 9, .input = 5, .output = 5, .site = 1}, Clock::now());
  done.end(Outcome::kDone);
  const auto waiting =
      other.begin({.op = Op::kReceive, .type = 4, .peer = 0, .number = 3, .output = 7, .label = 2}, Clock::now());
  other.leave();
  const flight::RankRecord record = read(path);
  EXPECT_EQ(record.pid, getpid());
  EXPECT_FALSE(record.is_dump);
  ASSERT_EQ(record.groups.size(), 2U);
  EXPECT_EQ(record.groups[0].name, "even");
  EXPECT_EQ(record.groups[0].ranks, even);
  EXPECT_FALSE(record.groups[0].left);
  EXPECT_EQ(record.groups[1].name.size(), 95U);
  EXPECT_EQ(record.groups[1].ranks, odd_ones);
  EXPECT_TRUE(record.groups[1].left);
  ASSERT_EQ(record.operations.size(), 2U);
  EXPECT_EQ(record.operations[0].outcome, Outcome::kDone);
  EXPECT_GE(record.operations[0].ended, record.operations[0].called);
  EXPECT_EQ(flight::describe(record, record.operations[0]), "all_reduce #9 (5 float32)");
  EXPECT_EQ(record.operations[0].place, "src/train.cpp:41");
  EXPECT_EQ(record.operations[1].place, "(DDP: fc1.weight)");
  EXPECT_TRUE(record.operations[1].under_way());
  EXPECT_EQ(record.operations[1].waited, 0U);
  EXPECT_EQ(flight::describe(record, record.operations[1]), "recv from rank 7, tag 3 (7 int64)");
  waiting.waits();
  EXPECT_NE(read(path).operations[1].waited, 0U);
}

TEST(FlightRecorder, TheLastOperationsStayAndOldTicketsEndNothing) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const auto group = flight::add_group("world", "lockstep", 0, 1, {});
  const auto first = group.begin({.op = Op::kBarrier, .number = 1}, Clock::now());
  for (std::uint64_t number = 2; number <= 3000; ++number)
    group.begin({.op = Op::kBarrier, .number = number}, Clock::now());
  first.end(Outcome::kFailed);
  first.waits();
  const flight::RankRecord record = read(path);
  EXPECT_EQ(record.total, 3000U);
  ASSERT_EQ(record.operations.size(), flight::kEntries);
  EXPECT_EQ(record.operations.back().number, 3000U);
  EXPECT_EQ(record.operations.front().number, 3000U - flight::kEntries + 1);
  for (const flight::Operation& operation : record.operations) {
    ASSERT_TRUE(operation.under_way() && operation.waited == 0);
  }
}

// The thread of an old call was stopped right after it had looked at its entry. It goes on when the ring has gone
// round.
TEST(FlightRecorder, AnEndThatComesTooLateEndsNoOtherCall) {
  const std::uint64_t later = flight::Entry::under_way(5 + flight::kEntries);
  flight::Entry entry{};
  entry.serial = 5;
  entry.ended = later;
  flight::Ticket(&entry, 5).end(Outcome::kDone);
  EXPECT_EQ(entry.ended, later);
  entry.ended = flight::Entry::under_way(5);
  flight::Ticket(&entry, 5).end(Outcome::kFailed);
  EXPECT_EQ(entry.ended & 3, static_cast<std::uint64_t>(Outcome::kFailed));
  flight::Ticket(&entry, 5).end(Outcome::kDone);
  EXPECT_EQ(entry.ended & 3, static_cast<std::uint64_t>(Outcome::kFailed)) << "the first end counts";
}

TEST(FlightRecorder, OldGroupsMakeRoom) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const auto old = flight::add_group("old", "lockstep", 0, 1, {});
  for (int i = 0; i < 100; ++i)
    static_cast<void>(flight::add_group("group " + std::to_string(i), "lockstep", 0, 1, {}));
  old.leave();  // another group is in its place
  old.begin({.op = Op::kBarrier, .number = 1}, Clock::now());
  const flight::RankRecord record = read(path);
  ASSERT_EQ(record.groups.size(), flight::kGroups);
  EXPECT_EQ(record.groups.back().name, "group 99");
  EXPECT_FALSE(record.groups.front().left);
  EXPECT_EQ(record.operations.at(0).group, -1);
}

TEST(FlightRecorder, GroupsThatWereLeftMakeRoomFirst) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const auto world = flight::add_group("world", "lockstep", 0, 1, {});
  for (int i = 0; i < 200; ++i) flight::add_group("group " + std::to_string(i), "lockstep", 0, 1, {}).leave();
  world.begin({.op = Op::kBarrier, .number = 1}, Clock::now());
  const flight::RankRecord record = read(path);
  ASSERT_EQ(record.groups.size(), flight::kGroups);
  EXPECT_EQ(record.groups.front().name, "world");
  EXPECT_FALSE(record.groups.front().left);
  EXPECT_EQ(record.groups.back().name, "group 199");
  EXPECT_TRUE(record.groups.back().left);
  EXPECT_EQ(record.operations.at(0).group, 0);
}

TEST(FlightRecorder, ThreadsThatMakeTheFirstGroupsShareTheFile) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  run_each(4, [](int thread) { flight::add_group("group " + std::to_string(thread), "lockstep", 0, 1, {}).leave(); });
  const flight::RankRecord record = read(path);
  ASSERT_EQ(record.groups.size(), 4U);
  for (const flight::GroupInfo& group : record.groups) EXPECT_TRUE(group.left);
}

// As a rank and its launcher do.
TEST(FlightRecorder, ADumpMayBeWrittenTwiceAtTheSameTime) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  static_cast<void>(flight::add_group("world", "lockstep", 0, 1, {}));
  const std::string dump = folder.path("dumps/rank_0.flight");
  run_each(4, [&](int) {
    for (int i = 0; i < 50; ++i) {
      const Status copied = flight::copy_to_dump(path, dump, "was running");
      ASSERT_TRUE(copied.ok()) << copied.message();
    }
  });
  EXPECT_TRUE(read(dump).is_dump);
  const std::filesystem::directory_iterator files(folder.path("dumps"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  std::filesystem::create_directories(folder.path("taken/rank_0.flight/full"));
  EXPECT_FALSE(flight::copy_to_dump(path, folder.path("taken/rank_0.flight"), "was running").ok());
  const std::filesystem::directory_iterator left(folder.path("taken"));
  EXPECT_EQ(std::distance(begin(left), end(left)), 1);
}

TEST(FlightRecorder, ThreadsWriteWhileSomebodyReads) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const auto group = flight::add_group("world", "lockstep", 0, 1, {});
  run_each(4, [&](int thread) {
    if (thread == 3) {
      for (int i = 0; i < 50; ++i) {
        for (const flight::Operation& operation : read(path).operations) {
          ASSERT_EQ(operation.input, operation.number);
          ASSERT_EQ(operation.output, operation.number);
        }
      }
      return;
    }
    for (std::uint64_t number = 1; number < 20'000; ++number) {
      const auto ticket =
          group.begin({.op = Op::kAllReduce, .number = number, .input = number, .output = number}, Clock::now());
      ticket.end(Outcome::kDone);
    }
  });
}

TEST(FlightRecorder, WithoutSharedMemoryItRecordsInItsOwn) {
  setenv("LOCKSTEP_RECORDER", "/proc/there/is/no/such.file", 1);
  const auto group = flight::add_group("world", "lockstep", 0, 1, {});
  group.begin({.op = Op::kBarrier, .number = 1}, Clock::now()).end(Outcome::kDone);
  ASSERT_NE(flight::ring_of_process(), nullptr);
  EXPECT_EQ(flight::ring_of_process()->operations, 1U);
}

TEST(FlightRecorder, AFileOfALivingProcessIsLeftAlone) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  static_cast<void>(flight::add_group("mine", "lockstep", 0, 1, {}));
  const pid_t child = fork();
  if (child == 0) {
    static_cast<void>(flight::add_group("of a fork", "lockstep", 0, 1, {}));
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read(path).groups.size(), 1U);
  EXPECT_EQ(read(path).pid, getpid());
}

TEST(FlightRecorder, AProcessThatReplacesItselfKeepsItsFile) {
  constexpr const char* kSecondImage = "LOCKSTEP_TEST_SECOND_IMAGE";
  if (getenv(kSecondImage) != nullptr) {
    static_cast<void>(flight::add_group("second", "lockstep", 0, 1, {}));
    return;
  }
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const pid_t child = fork();
  if (child == 0) {
    static_cast<void>(flight::add_group("first", "lockstep", 0, 1, {}));
    setenv(kSecondImage, "1", 1);
    execl("/proc/self/exe", "flight_tests", "--gtest_filter=FlightRecorder.AProcessThatReplacesItselfKeepsItsFile",
          nullptr);
    _exit(1);
  }
  waitpid(child, nullptr, 0);
  const flight::RankRecord record = read(path);
  EXPECT_EQ(record.pid, child);
  ASSERT_EQ(record.groups.size(), 1U);
  EXPECT_EQ(record.groups.front().name, "second");
}

TEST(FlightRecorder, AKilledProcessLeavesItsFile) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const pid_t child = fork();
  if (child == 0) {
    const auto group = flight::add_group("world", "lockstep", 0, 2, {});
    group.begin({.op = Op::kAllReduce, .waits = true, .number = 7}, Clock::now());
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  const flight::RankRecord record = read(path);
  EXPECT_EQ(record.pid, child);
  ASSERT_EQ(record.operations.size(), 1U);
  EXPECT_TRUE(record.operations[0].under_way());
  // The next process of the worker takes it over.
  static_cast<void>(flight::add_group("next", "lockstep", 0, 1, {}));
  EXPECT_EQ(read(path).pid, getpid());
  EXPECT_EQ(read(path).operations.size(), 0U);
}

TEST(FlightRecorder, DumpsOnceWhereTheVariableSays) {
  const ScratchFolder folder;
  use_file(folder);
  setenv("TORCHELASTIC_RUN_ID", "../my job", 1);
  setenv("LOCKSTEP_RESTART_COUNT", "2", 1);
  const auto group = flight::add_group("world", "lockstep", 3, 4, {});
  group.begin({.op = Op::kBarrier, .number = 1}, Clock::now());
  flight::dump_once();  // nowhere
  setenv("LOCKSTEP_DUMP_DIR", folder.path("dumps").c_str(), 1);
  flight::dump_once();
  group.begin({.op = Op::kBarrier, .number = 2}, Clock::now());
  flight::dump_once();
  const auto dumps = flight::dumps_in(folder.path("dumps"));
  ASSERT_TRUE(dumps.ok());
  ASSERT_EQ(dumps.value().size(), 1U);
  EXPECT_EQ(dumps.value()[0], folder.path("dumps/job.._my_job/attempt_2/rank_3.flight"));
  const flight::RankRecord record = read(dumps.value()[0]);
  EXPECT_TRUE(record.is_dump);
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.operations.size(), 1U);
}

TEST(FlightRecorder, ReadsNothingFromFilesThatAreNoRecorders) {
  const ScratchFolder folder;
  folder.write("empty", "");
  folder.write("short", "LSPFLGHT");
  folder.write("zeros", std::string(sizeof(flight::Ring), '\0'));
  folder.write("text", std::string(sizeof(flight::Ring), 'x'));
  EXPECT_EQ(flight::read_record(folder.path("none")).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(flight::read_record(folder.path("empty")).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(flight::read_record(folder.path("zeros")).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(flight::read_record(folder.path("short")).status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(flight::read_record(folder.path("text")).status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(flight::read_record(folder.path()).status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(flight::dumps_in(folder.path()).status().code(), ErrorCode::kNotFound);
}

// Takes 2 seconds: 150 files in which random words are random, all of them behind the head in every third.
TEST(FlightRecorder, ReadsFilesThatHoldAnything) {
  const ScratchFolder folder;
  const std::string path = use_file(folder);
  const auto group = flight::add_group("world", "lockstep", 0, 3, {});
  for (std::uint64_t number = 1; number <= 50; ++number) {
    group.begin({.op = Op::kAllReduce, .type = 6, .number = number, .input = 4}, Clock::now()).end(Outcome::kDone);
  }
  const std::string whole = read_file(path);
  ASSERT_EQ(whole.size(), sizeof(flight::Ring));
  std::mt19937_64 random(1);
  for (int round = 0; round < 150; ++round) {
    std::string bytes = whole;
    const std::size_t changes = round % 3 == 0 ? bytes.size() / 8 - 2 : 1 + random() % 5000;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t word = 2 + (round % 3 == 0 ? i : random() % (bytes.size() / 8 - 2));
      const std::uint64_t value = random() % 4 == 0 ? random() : random() % 2000;
      memcpy(bytes.data() + word * 8, &value, sizeof value);
    }
    folder.write("hostile.flight", bytes);
    const auto record = flight::read_record(folder.path("hostile.flight"));
    ASSERT_TRUE(record.ok()) << record.status().message();
    const std::vector<flight::RankRecord> records{read(path), record.value()};
    const std::string text = flight::report_text(records);
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_FALSE(flight::chrome_trace(records).empty());
  }
}

}  // namespace
}  // namespace lockstep::test
