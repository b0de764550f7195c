// send and recv: matching by source and tag, both sizes of message, both places, and what outlives the sender.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/calls.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using test::Buffer;
using test::Place;

constexpr auto kMessagePatience = std::chrono::seconds(30);
constexpr std::size_t kSizes[] = {0, 1, 40, 41, 2048, 2049, 300'000};
Deadline soon_enough() {
  return Deadline::after(kMessagePatience);
}

void fill(const Buffer& buffer, int seed) {
  for (std::size_t i = 0; i < buffer.bytes(); ++i) buffer.data()[i] = std::byte(i * 31 + seed);
}

void expect_filled(const Buffer& buffer, int seed) {
  for (std::size_t i = 0; i < buffer.bytes(); ++i) ASSERT_EQ(buffer.data()[i], std::byte(i * 31 + seed)) << i;
}

void expect_ok(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(PointToPointMulti, EverySizeAndPlaceInBothDirections) {
  test::run_threads(2, [](Communicator& group) {
    for (const std::size_t bytes : kSizes) {
      for (int mode = 0; mode < 4; ++mode) {
        const int me = group.rank();
        const Buffer out(group.arena(), mode % 2 == 0 ? Place::kArena : Place::kPrivate, bytes);
        const Buffer in(group.arena(), mode / 2 == 0 ? Place::kArena : Place::kPrivate, bytes);
        fill(out, 5 + me);
        if (me == 0) {
          expect_ok(group.run(Send{{out.data(), bytes}, 1, 3}, soon_enough()));
          expect_ok(group.run(Receive{{in.data(), bytes}, 1, 3}, soon_enough()));
        } else {
          expect_ok(group.run(Receive{{in.data(), bytes}, 0, 3}, soon_enough()));
          expect_ok(group.run(Send{{out.data(), bytes}, 0, 3}, soon_enough()));
        }
        expect_filled(in, 5 + 1 - me);
      }
    }
  });
}

TEST(PointToPointMulti, TagsAreReceivedInAnyOrder) {
  test::run_threads(2, [](Communicator& group) {
    constexpr int kMessages = 40;  // more than the ring between two ranks holds
    if (group.rank() == 0) {
      for (int tag = 0; tag < kMessages; ++tag) {
        expect_ok(group.run(Send{{&tag, sizeof(tag)}, 1, tag}, soon_enough()));
      }
    } else {
      for (int tag = kMessages - 1; tag >= 0; --tag) {
        int value = -1;
        expect_ok(group.run(Receive{{&value, sizeof(value)}, 0, tag}, soon_enough()));
        ASSERT_EQ(value, tag);
      }
    }
  });
}

TEST(PointToPointMulti, EqualTagsKeepTheirOrder) {
  test::run_threads(2, [](Communicator& group) {
    std::vector<int> large(5000);
    for (int i = 0; i < 50; ++i) {
      large[0] = i;
      const std::size_t bytes = i % 3 == 0 ? large.size() * sizeof(int) : sizeof(int);
      if (group.rank() == 0) {
        expect_ok(group.run(Send{{large.data(), bytes}, 1, 9}, soon_enough()));
      } else {
        expect_ok(group.run(Receive{{large.data(), bytes}, kAnySource, 9}, soon_enough()));
        ASSERT_EQ(large[0], i);
      }
    }
  });
}

TEST(PointToPointMulti, AnySourceTellsWhoItWas) {
  test::run_threads(4, [](Communicator& group) {
    if (group.rank() != 0) {
      const int value = group.rank() * 11;
      expect_ok(group.run(Send{{&value, sizeof(value)}, 0, 1}, soon_enough()));
    } else {
      std::vector<bool> seen(4);
      for (int i = 1; i < 4; ++i) {
        int value = 0;
        auto operation = group.start(Receive{{&value, sizeof(value)}, kAnySource, 1});
        expect_ok(operation->wait(soon_enough()));
        ASSERT_EQ(value, operation->source() * 11);
        ASSERT_FALSE(seen[operation->source()]);
        seen[operation->source()] = true;
      }
    }
    expect_ok(group.run(Barrier{}, soon_enough()));
  });
}

TEST(PointToPointMulti, ARankMaySendToItself) {
  test::run_threads(2, [](Communicator& group) {
    for (const std::size_t bytes : kSizes) {
      for (const Place place : {Place::kArena, Place::kPrivate}) {
        const Buffer out(group.arena(), place, bytes);
        const Buffer in(group.arena(), place, bytes);
        fill(out, group.rank());
        auto sent = group.start(Send{{out.data(), bytes}, group.rank(), 0});
        expect_ok(group.run(Receive{{in.data(), bytes}, group.rank(), 0}, soon_enough()));
        expect_ok(sent->wait(soon_enough()));
        expect_filled(in, group.rank());
      }
    }
  });
}

TEST(PointToPointMulti, WrongSizeIsTheReceiversErrorAlone) {
  test::run_threads(2, [](Communicator& group) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{10'000}}) {
      std::vector<std::byte> data(bytes);
      if (group.rank() == 0) {
        expect_ok(group.run(Send{{data.data(), bytes}, 1, 4}, soon_enough()));
      } else {
        const Status status = group.run(Receive{{data.data(), bytes - 1}, 0, 4}, soon_enough());
        ASSERT_EQ(status.code(), ErrorCode::kMismatch);
        const std::string sizes =
            "expected " + std::to_string(bytes - 1) + " bytes, the message has " + std::to_string(bytes);
        ASSERT_NE(status.message().find("recv from rank 0 with tag 4: " + sizes), std::string::npos)
            << status.message();
      }
    }
    expect_ok(group.run(Barrier{}, soon_enough()));
  });
}

TEST(PointToPointMulti, BadPeersAndTagsAreRefused) {
  test::run_threads(1, [](Communicator& group) {
    EXPECT_EQ(group.run(Send{{}, 1, 0}, soon_enough()).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(group.run(Send{{}, kAnySource, 0}, soon_enough()).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(group.run(Receive{{}, -2, 0}, soon_enough()).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(group.start(Receive{{}, 0, -1}).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(group.health().ok());
  });
}

TEST(PointToPointMulti, StormInRandomOrder) {
  test::run_threads(4, [](Communicator& group) {
    constexpr int kMessages = 30;  // to each rank
    const int world = group.group_size();
    std::mt19937 random(group.rank() + 1);
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Operation> operations;
    std::vector<int> order(std::size_t{2} * kMessages * static_cast<std::size_t>(world));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::pair<const Buffer*, int>> expected;
    for (const int i : order) {
      const bool send = i % 2 == 0;
      const int peer = i / 2 % world;
      const int tag = i / 2 / world;
      const std::size_t bytes = tag % 5 == 0 ? 20'000 : 7 * tag;
      const Place place = random() % 2 == 0 ? Place::kArena : Place::kPrivate;
      const Buffer& buffer = *buffers.emplace_back(std::make_unique<Buffer>(group.arena(), place, bytes));
      if (send) fill(buffer, group.rank() * 100 + tag);
      if (!send) expected.emplace_back(&buffer, peer * 100 + tag);
      auto started = send ? group.start(Send{{buffer.data(), bytes}, peer, tag})
                          : group.start(Receive{{buffer.data(), bytes}, peer, tag});
      ASSERT_TRUE(started.ok()) << started.status().message();
      operations.push_back(*started);
    }
    std::shuffle(operations.begin(), operations.end(), random);
    for (Operation& operation : operations) expect_ok(operation.wait(soon_enough()));
    for (const auto& [buffer, seed] : expected) ASSERT_NO_FATAL_FAILURE(expect_filled(*buffer, seed));
  });
}

TEST(PointToPointMulti, MessagesOutliveTheSendersGroup) {
  auto store = std::make_shared<HashStore>();
  test::Meeting sender_gone;
  const auto run = [&](int rank) {
    const auto arena = SharedArena::create().value();
    auto group = test::join(store, rank, 2, arena);
    Buffer small(group->arena(), Place::kPrivate, 100);
    Buffer large(group->arena(), Place::kPrivate, 200'000);
    if (rank == 0) {
      fill(small, 1);
      fill(large, 2);
      expect_ok(group->run(Send{{large.data(), large.bytes()}, 1, 2}, soon_enough()));
      expect_ok(group->run(Send{{small.data(), small.bytes()}, 1, 1}, soon_enough()));
      group.reset();
      sender_gone.open();
    } else {
      sender_gone.wait();
      expect_ok(group->run(Receive{{small.data(), small.bytes()}, 0, 1}, soon_enough()));
      expect_ok(group->run(Receive{{large.data(), large.bytes()}, 0, 2}, soon_enough()));
      expect_filled(small, 1);
      expect_filled(large, 2);
      const Status none = group->run(Receive{{small.data(), 1}, 0, 3}, soon_enough());
      EXPECT_EQ(none.code(), ErrorCode::kPeerFailed);
      EXPECT_NE(none.message().find("recv from rank 0 with tag 3"), std::string::npos) << none.message();
    }
  };
  test::run_each(2, run);
}

// The receiver reads the sender's buffer itself, so the sender cannot free it before.
TEST(PointToPointMulti, LeavingWithASharedBufferOnItsWayBreaksTheGroup) {
  auto store = std::make_shared<HashStore>();
  test::Meeting sender_gone;
  test::run_each(2, [&](int rank) {
    const auto arena = SharedArena::create().value();
    auto group = test::join(store, rank, 2, arena);
    Buffer large(group->arena(), Place::kArena, 200'000);
    if (rank == 0) {
      auto operation = group->start(Send{{large.data(), large.bytes()}, 1, 2});
      group.reset();
      EXPECT_EQ(operation->wait(soon_enough()).code(), ErrorCode::kAborted);
      sender_gone.open();
    } else {
      sender_gone.wait();
      const Status status = group->run(Receive{{large.data(), large.bytes()}, 0, 2}, soon_enough());
      EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
      EXPECT_NE(status.message().find("left the group with send to rank 1 with tag 2"), std::string::npos)
          << status.message();
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
