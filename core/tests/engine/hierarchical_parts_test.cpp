// Parts of a group that spans machines, alone: no test here needs a network.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>

#include "engine/core/error_text.h"
#include "engine/core/long_wait.h"
#include "engine/hierarchical/control_messages.h"
#include "engine/hierarchical/hierarchical_group.h"
#include "engine/hierarchical/peers.h"
#include "engine/hierarchical/step_queue.h"

namespace lockstep::comm {
namespace {

// The boards of all ranks of one machine, over the same rows.
class Boards {
 public:
  Boards(int local_ranks, int size) : cells_(static_cast<std::size_t>(local_ranks) * size) {
    std::vector<CallBoard::Row> rows;
    for (int index = 0; index < local_ranks; ++index) rows.push_back(&cells_[static_cast<std::size_t>(index) * size]);
    for (int index = 0; index < local_ranks; ++index) boards_.emplace_back(rows, index);
  }
  const CallBoard& of(int index) const { return boards_[index]; }

 private:
  std::vector<CallBoard::Entry> cells_;
  std::vector<CallBoard> boards_;
};

TEST(CallBoard, ShowsTheLatestCallThatAnyRankOfTheMachineKnows) {
  const Boards boards(3, 5);
  boards.of(0).note(4, call_word(7, Kind::kAllReduce));
  boards.of(2).note(4, call_word(9, Kind::kBarrier));
  boards.of(1).note(4, call_word(8, Kind::kGather));
  boards.of(2).note(4, call_word(2, Kind::kReduce));  // older news come late
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(boards.of(index).latest(4), call_word(9, Kind::kBarrier));
    EXPECT_FALSE(boards.of(index).place(4)) << "nobody has said from where";
    EXPECT_TRUE(boards.of(index).has_called(4, 9));
    EXPECT_FALSE(boards.of(index).has_called(4, 10));
  }
}

SentPlace place_at(std::uint32_t line) {
  return SentPlace({number_of({"a program/src/train.cpp", line}), 0});
}

TEST(CallBoard, ShowsFromWhereTheLatestCallWasMade) {
  const Boards boards(2, 3);
  boards.of(0).note(1, call_word(7, Kind::kAllReduce), place_at(41));
  boards.of(1).note(1, call_word(6, Kind::kBarrier), place_at(40));
  ASSERT_TRUE(boards.of(1).place(1));
  EXPECT_EQ(boards.of(1).place(1)->describe(), " at src/train.cpp:41");
  boards.of(0).note(1, call_word(5, Kind::kBarrier), place_at(39));  // older news come late
  EXPECT_EQ(boards.of(1).place(1)->describe(), " at src/train.cpp:41");
  boards.of(1).note(1, call_word(8, Kind::kBarrier));
  EXPECT_FALSE(boards.of(0).place(1)) << "nobody knows from where call 8 came";
}

TEST(CallBoard, KnowsNothingAtFirst) {
  const Boards boards(1, 2);
  EXPECT_EQ(boards.of(0).latest(1), 0U);
  EXPECT_FALSE(boards.of(0).place(1));
  EXPECT_FALSE(boards.of(0).has_called(1, 1));
}

TEST(AbsentRanks, OfManyOnlyTheFirstAreDescribed) {
  const auto known = [](int rank) {
    AbsentRank absent;
    absent.rank = rank;
    absent.last_call = "no call yet";
    return absent;
  };
  const std::vector<std::string> texts = describe_absent({1, 2, 4, 5, 6, 9}, Roster(), known);
  EXPECT_EQ(Roster().list(texts), "rank(s) 1 (no call yet), 2 (no call yet), 4 (no call yet), 5 (no call yet), 6, 9");
}

TEST(SlowCollective, IsNotSaidToStandStill) {
  Watch watch;
  const auto ago = [&](double seconds) {
    return watch.progressed - std::chrono::milliseconds(std::llround(seconds * 1000));
  };
  watch.started = ago(30);
  EXPECT_TRUE(still_moves(watch, ago(0.2)));
  EXPECT_FALSE(still_moves(watch, ago(2)));
  watch.started = ago(0.3);
  EXPECT_FALSE(still_moves(watch, ago(0.2))) << "nothing has moved in most of a short wait";
}

TEST(ActiveMessageHeader, ComesBackAsItWasSent) {
  const std::string token("a token\0 of some bytes", 22);
  const std::string text = pack_header({ActiveMessageHeader::Type::kAbort, 3, -5}, token);
  const auto header = unpack_header(text, token, 4);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->type, ActiveMessageHeader::Type::kAbort);
  EXPECT_EQ(header->source, 3);
  EXPECT_EQ(header->tag, -5);
}

TEST(ActiveMessageHeader, IsRefusedFromStrangers) {
  const std::string token = "0123456789abcdef";
  const std::string text = pack_header({ActiveMessageHeader::Type::kNews, 1, 0}, token);
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_FALSE(unpack_header(text.substr(0, bytes), token, 2));
  EXPECT_FALSE(unpack_header(text + '\0', token, 2));
  EXPECT_FALSE(unpack_header(text, "0123456789abcdeF", 2));
  EXPECT_FALSE(unpack_header(text, token, 1)) << "the group has no rank 1";
  EXPECT_FALSE(unpack_header(pack_header({ActiveMessageHeader::Type::kNews, -1, 0}, token), token, 2));
}

TEST(News, ComeBackAsTheyWereSent) {
  const std::vector<RankNews> sent{{call_word(1, Kind::kBarrier), "", "barrier #2", place_at(12)},
                                   {0, "stopped by a signal"},
                                   {~std::uint64_t{0}, "dead"}};
  const std::vector<RankNews> got = unpack_news(pack_news(sent), sent.size());
  ASSERT_EQ(got.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(got[i].call, sent[i].call);
    EXPECT_EQ(got[i].condition, sent[i].condition);
    EXPECT_EQ(got[i].waits_for, sent[i].waits_for);
    EXPECT_EQ(got[i].place.describe(), sent[i].place.describe());
  }
  EXPECT_EQ(unpack_news(pack_news(sent), 2).size(), 2U) << "what follows does not count";
}

TEST(News, ThatAreCutOffGiveTheRanksThatAreWhole) {
  const std::vector<RankNews> sent{{1, "a"}, {2, ""}, {3, "bc"}};
  const std::string text = pack_news(sent);
  for (std::size_t bytes = 0; bytes <= text.size(); ++bytes) {
    const std::vector<RankNews> got = unpack_news(std::string_view(text).substr(0, bytes), sent.size());
    std::size_t whole = 0;
    while (whole < sent.size() &&
           pack_news({sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(whole) + 1}).size() <= bytes)
      ++whole;
    ASSERT_EQ(got.size(), whole) << bytes;
    for (std::size_t i = 0; i < whole; ++i) EXPECT_EQ(got[i].call, sent[i].call);
  }
}

TEST(News, OfRandomBytesAreReadWithoutHarm) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 600, '\0');
    for (char& byte : text) byte = static_cast<char>(random() % 4);
    std::size_t bytes = 0;
    for (const RankNews& one : unpack_news(text, 5))
      bytes += sizeof one.call + sizeof one.place + one.condition.size() + one.waits_for.size() + 2;
    ASSERT_LE(bytes, text.size());
  }
}

TEST(StepWindow, HoldsFewLargeStepsOrManySmallOnes) {
  StepWindow small;
  for (std::size_t i = 0; i < StepWindow::kSteps; ++i) {
    ASSERT_TRUE(small.has_room());
    small.enter(1);
  }
  EXPECT_FALSE(small.has_room());
  small.leave(1);
  EXPECT_TRUE(small.has_room());

  StepWindow large;
  large.enter(10 * StepWindow::kBytes);
  EXPECT_TRUE(large.has_room()) << "two steps always have room";
  large.enter(1);
  EXPECT_FALSE(large.has_room());
  large.leave(10 * StepWindow::kBytes);
  large.enter(StepWindow::kBytes - 2);
  EXPECT_TRUE(large.has_room());
  large.enter(1);
  EXPECT_FALSE(large.has_room());
}

Topology with_addresses(const std::vector<std::vector<std::string>>& addresses) {
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    Member member;
    member.rank = static_cast<int>(rank);
    member.group_size = static_cast<int>(addresses.size());
    member.machine = "machine" + std::to_string(rank);
    member.addresses = addresses[rank];
    members.push_back(std::move(member));
  }
  return Topology(members);
}

TEST(Admission, IsForTheAddressesOfOtherMachines) {
  const Topology topology = with_addresses({{"10.0.0.1"}, {"10.0.0.2", "10.1.0.2"}, {"10.0.0.3"}});
  const Admitted admitted = admitted_to(topology, 0);
  EXPECT_EQ(admitted.addresses, (std::vector<std::string>{"10.0.0.2", "10.0.0.3", "10.1.0.2"}));
  EXPECT_FALSE(admitted.loopback);
}

TEST(Admission, LeavesOutAnAddressThatThisMachineHasToo) {
  const Topology topology = with_addresses({{"10.0.0.1", "172.17.0.1"}, {"10.0.0.2", "172.17.0.1"}});
  EXPECT_EQ(admitted_to(topology, 0).addresses, std::vector<std::string>{"10.0.0.2"});
}

TEST(Admission, IsForThisMachineOnlyIfAnotherMachineIsOnIt) {
  const Topology topology = with_addresses({{"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.2"}});
  const Admitted admitted = admitted_to(topology, 0);
  EXPECT_EQ(admitted.addresses, (std::vector<std::string>{"10.0.0.1", "10.0.0.2"}));
  EXPECT_TRUE(admitted.loopback);
  EXPECT_FALSE(admitted_to(topology, 2).loopback);
}

}  // namespace
}  // namespace lockstep::comm
