// What is said of a job in trouble, and the formats of other tools.
#include "flight/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flight/export.h"
#include "flight/records.h"
#include "flight/waits.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using flight::Op;
using flight::Outcome;
using flight::RankRecord;

std::string said_of(const std::vector<RankRecord>& records) {
  std::string all;
  for (const std::string& one : flight::findings(records)) all += one + "\n";
  return all;
}

std::vector<RankRecord> world(int size, std::uint64_t done = 4) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < size; ++rank) {
    records.push_back(rank_of(rank, size));
    for (std::uint64_t number = 1; number <= done; ++number) add(records.back(), Op::kAllReduce, number, 50 - number);
  }
  return records;
}

TEST(FlightReport, NothingIsWrongWithRanksThatGoOn) {
  EXPECT_EQ(said_of(world(3)), "");
  EXPECT_NE(flight::report_text(world(3)).find("Nothing is wrong"), std::string::npos);
}

TEST(FlightReport, NamesTheRankThatHasNotCalled) {
  auto records = world(3);
  for (const int rank : {0, 1}) add(records[static_cast<std::size_t>(rank)], Op::kAllReduce, 5, 12, Outcome::kUnderWay);
  EXPECT_EQ(said_of(records),
            "Group 'world': ranks 0, 1 wait in all_reduce #5 (1024 float32) for 12.0 s; rank 2 (pid 1002 on here) has "
            "not called it: its last collective of 'world' was all_reduce #4; it is outside of Lockstep since "
            "all_reduce #4 (1024 float32) ended, 45.0 s ago.\n");
}

TEST(FlightReport, NamesADeadRankAndWhatItDidLast) {
  auto records = world(2);
  add(records[0], Op::kBarrier, 5, 3, Outcome::kFailed);
  records[1].process = "ended: signal SIGKILL (9)";
  records[1].ended = true;
  const std::string said = said_of(records);
  EXPECT_NE(said.find("Rank 1 (pid 1001 on here) has ended: signal SIGKILL (9); its last operation was all_reduce #4"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("barrier #5 of rank 0 failed after 1.0 s; rank 1 (pid 1001 on here) has not called it"),
            std::string::npos)
      << said;
}

TEST(FlightReport, AFailureThatTheProgramHandledIsNoTroubleAndHidesNone) {
  auto records = world(2);
  for (RankRecord& record : records) add(record, Op::kAllReduce, 5, 20, Outcome::kFailed);
  EXPECT_NE(said_of(records).find("all_reduce #5 (1024 float32) of ranks 0, 1 failed"), std::string::npos);
  for (RankRecord& record : records) add(record, Op::kAllReduce, 6, 18);
  EXPECT_EQ(said_of(records), "");
  for (RankRecord& record : records) add(record, Op::kAllReduce, 7, 16, Outcome::kFailed);
  add(records[0], Op::kBarrier, 8, 12, Outcome::kUnderWay);
  const std::string said = said_of(records);
  EXPECT_EQ(said.find("Group 'world': rank 0 waits in barrier #8 for 12.0 s; rank 1 (pid 1001 on here) has not called"),
            0U)
      << said;
}

TEST(FlightReport, ARefusedCallDiffersFromNothing) {
  auto records = world(2);
  add(records[0], Op::kAllReduce, 5, 3, Outcome::kFailed);
  add(records[1], Op::kOther, 5, 3, Outcome::kFailed).input = 0;
  const std::string said = said_of(records);
  EXPECT_EQ(said.find("differ"), std::string::npos) << said;
  EXPECT_EQ(flight::describe(records[1], records[1].operations.back()), "a refused call #5");
}

TEST(FlightReport, NamesDifferentOperationsSizesAndRootsUnderOneNumber) {
  auto records = world(3);
  add(records[0], Op::kAllReduce, 5, 3, Outcome::kFailed);
  add(records[1], Op::kAllReduce, 5, 3, Outcome::kFailed).input = 7000;
  add(records[2], Op::kBroadcast, 5, 3, Outcome::kFailed).peer = 1;
  const std::string said = said_of(records);
  EXPECT_NE(
      said.find("ranks differ in collective #5: rank 0 called all_reduce (1024 float32); rank 1 called all_reduce "
                "(7000 float32); rank 2 called broadcast (1024 float32) with root 1"),
      std::string::npos)
      << said;
}

TEST(FlightReport, NamesARankThatWaitsInAnotherGroupAndRanksOfOtherMachines) {
  auto records = world(3);
  records.pop_back();  // it is elsewhere
  add(records[0], Op::kAllReduce, 5, 9, Outcome::kUnderWay);
  records[1].groups.push_back({"pair", 0, 2, {1, 2}, false});
  add(records[1], Op::kBarrier, 1, 10, Outcome::kUnderWay).group = 1;
  const std::string said = said_of(records);
  EXPECT_NE(
      said.find("rank 0 waits in all_reduce #5 (1024 float32) for 9.0 s; rank 1 (pid 1001 on here) has not called "
                "it: its last collective of 'world' was all_reduce #4; it waits in barrier #1 for 10.0 s; of rank "
                "2 there is no record here"),
      std::string::npos)
      << said;
}

TEST(FlightReport, NamesMessagesThatDoNotCome) {
  auto records = world(2);
  flight::Operation& receive = add(records[1], Op::kReceive, 3, 5, Outcome::kUnderWay);
  receive.peer = 0;
  EXPECT_EQ(said_of(records), "Rank 1 waits in recv from rank 0, tag 3 (1024 float32) for 5.0 s.\n");
}

// Ranks that make a step of ten seconds, of which they read for one; rank 1 computes for 8 s, the others for 5 s.
std::vector<RankRecord> with_slow_rank(int slow) {
  auto records = world(3, 0);
  for (std::uint64_t number = 1; number <= 40; ++number) {
    for (RankRecord& record : records) {
      record.now = 1000 * kSecond;
      flight::Operation& one = add(record, Op::kAllReduce, number, 410 - 10 * number);
      one.ended = one.called + 4 * kSecond;
      if (record.rank == slow) one.called += 3 * kSecond;
      one.waited = one.called;
      record.input = number * kSecond;
      record.steps.push_back({one.ended, record.input});
      record.steps_done = number;
    }
  }
  return records;
}

TEST(FlightReport, NamesTheSlowRank) {
  auto records = with_slow_rank(1);
  EXPECT_NE(flight::report_text(records).find(
                "A slow rank: rank 1 (pid 1001 on here) came last to 40 of the last 40 collectives, in the median by "
                "3.0 s: the others waited for it for 31 % of the time.\n"),
            std::string::npos)
      << flight::report_text(records);
  records.erase(records.begin() + 1);
  EXPECT_EQ(flight::report_text(records).find("slow"), std::string::npos);
  // Ranks that are late in turns.
  records = with_slow_rank(1);
  for (std::size_t i = 0; i < 40; i += 2) std::swap(records[0].operations[i], records[1].operations[i]);
  EXPECT_EQ(flight::report_text(records).find("slow"), std::string::npos);
}

TEST(FlightReport, SplitsTheTimeOfSteps) {
  const auto records = with_slow_rank(1);
  const std::string text = flight::report_text(records);
  for (const char* line : {"    0     39     10.0 s    10 %      50 %          10 %      30 %\n",
                           "    1     39     10.0 s    10 %      80 %          10 %       0 %\n",
                           "  all     39     10.0 s    10 %      60 %          10 %      20 %\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  const flight::TimeSplit times = flight::Waits(records).split(2);
  EXPECT_EQ(times.steps, 39U);
  EXPECT_EQ(times.span, 390 * kSecond);
  EXPECT_EQ(times.waiting, 117 * kSecond);
  EXPECT_EQ(times.communication, 39 * kSecond);
  EXPECT_EQ(times.input, 39 * kSecond);
}

// A live job is always in some operation.
TEST(FlightReport, ShortWaitsOfALiveJobAreNoTrouble) {
  auto records = world(2);
  add(records[0], Op::kAllReduce, 5, 0, Outcome::kUnderWay);
  for (RankRecord& record : records) record.is_dump = false;
  EXPECT_EQ(said_of(records), "");
  for (RankRecord& record : records) record.now += 2 * kSecond;
  EXPECT_NE(said_of(records), "");
}

// A process that joins later has made fewer groups of the same name.
TEST(FlightReport, GroupsAreMatchedFromTheLastOneOn) {
  auto records = world(2);
  auto again = records[0].groups[0];
  records[0].groups[0].left = true;
  records[0].groups.push_back(again);
  add(records[0], Op::kAllReduce, 1, 2).group = 1;
  records[1].operations.clear();
  add(records[1], Op::kAllReduce, 1, 2);
  EXPECT_EQ(said_of(records), "");
  const auto shared = flight::shared_groups(records);
  ASSERT_EQ(shared.size(), 2U);
  EXPECT_EQ(shared[0].members.size(), 2U);
}

// Rank 0 waits in a second group 'pair' while rank 1 has made one of this name and computes.
TEST(FlightReport, GroupsOfOneNameAreMatchedByTheirIdentity) {
  auto records = world(2);
  for (RankRecord& record : records) {
    record.groups.push_back({"pair", record.rank, 2, {0, 1}, false, 7});
    add(record, Op::kBroadcast, 1, 20).group = 1;
  }
  records[0].groups.push_back({"pair", 0, 2, {0, 1}, false, 8});
  add(records[0], Op::kBarrier, 1, 12, Outcome::kUnderWay).group = 2;
  EXPECT_EQ(said_of(records),
            "Group 'pair': rank 0 waits in barrier #1 for 12.0 s; rank 1 (pid 1001 on here) has not made the group, or "
            "its recorder has forgotten it: it is outside of Lockstep since broadcast #1 (1024 float32) ended, 19.0 s "
            "ago.\n");
  const auto shared = flight::shared_groups(records);
  ASSERT_EQ(shared.size(), 3U);
  EXPECT_EQ(shared[0].members.size(), 1U);
  EXPECT_EQ(shared[0].turn, 0U);
  EXPECT_EQ(shared[1].members.size(), 2U);
  EXPECT_EQ(shared[1].turn, 1U);
  // Rank 1 has forgotten its first group.
  records[1].groups.back().identity = 8;
  records[1].operations.back().op = Op::kBarrier;
  EXPECT_EQ(said_of(records), "Group 'pair': rank 0 waits in barrier #1 for 12.0 s; every rank has called it.\n");
}

// Rank 1 knows no identity of its groups.
TEST(FlightReport, AGroupWithoutIdentityBelongsToTheGroupOfItsNameAndTurn) {
  auto records = world(3);
  for (RankRecord& record : records) {
    const std::uint64_t known = record.rank == 1 ? 0 : 1;
    record.groups.push_back({"ring", record.rank, 3, {0, 1, 2}, false, 7 * known});
    record.groups.push_back({"ring", record.rank, 3, {0, 1, 2}, false, 8 * known});
  }
  const auto shared = flight::shared_groups(records);
  ASSERT_EQ(shared.size(), 3U);
  for (const std::size_t turn : {0U, 1U}) {
    EXPECT_EQ(shared[turn].turn, turn);
    ASSERT_EQ(shared[turn].members.size(), 3U);
    for (const auto& member : shared[turn].members) EXPECT_EQ(member.group, turn == 0 ? 2 : 1);
  }
}

TEST(FlightReport, TheTraceHoldsEveryOperation) {
  auto records = world(2);
  add(records[0], Op::kAllReduce, 5, 12, Outcome::kUnderWay).place = "src/train.cpp:41";
  EXPECT_NE(said_of(records).find(" (called at src/train.cpp:41);"), std::string::npos);
  const auto trace = nlohmann::json::parse(flight::chrome_trace(records))["traceEvents"];
  const auto count = [&](const char* phase) {
    return std::count_if(trace.begin(), trace.end(), [&](const auto& event) { return event["ph"] == phase; });
  };
  EXPECT_EQ(count("b"), 9);
  EXPECT_EQ(count("e"), 9);
  EXPECT_EQ(count("M"), 6);
}

TEST(FlightReport, FilesForPyTorchNeedAFolderOfTheirOwn) {
  const ScratchFolder folder;
  ASSERT_TRUE(flight::write_pytorch(world(2), folder.path("out")).ok());
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/rank_1")));
  auto records = world(2);
  records[1].operations[0].place = "src/train.cpp:41 (DDP: fc1.weight)";
  ASSERT_TRUE(flight::write_pytorch(records, folder.path("out")).ok());  // the earlier ones are replaced
  const std::string bytes = read_file(folder.path("out/rank_1"));
  // Texts of a pickle, each behind its length.
  EXPECT_NE(bytes.find(std::string("X\x0d\0\0\0src/train.cpp", 18)), std::string::npos);
  EXPECT_NE(bytes.find(std::string("X\x02\0\0\0"
                                   "41",
                                   7)),
            std::string::npos);
  folder.write("out/notes.txt", "mine");
  const Status refused = flight::write_pytorch(world(2), folder.path("out"));
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("notes.txt"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::test
