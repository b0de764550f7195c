// Programs in which ranks wait in one group while another group needs them. All of these programs are correct: no rank
// waits for an operation that it has not started yet.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/calls.h"

namespace lockstep::test {

// Two groups of the same ranks; ranks but these two only meet the others in `second`.
struct Program {
  comm::Communicator& first;
  comm::Communicator& second;
  int sender = 0;
  int receiver = 1;

  static Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }
  static void expect_ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }
  bool sends() const { return first.rank() == sender; }
  bool receives() const { return first.rank() == receiver; }
  void meet(comm::Communicator& group) const { expect_ok(group.run(comm::Barrier{}, soon())); }

  static constexpr int kMessages = 20;  // a ring between two ranks holds 8

  void receive_all() const {
    for (int i = 0; i < kMessages; ++i) {
      int value = -1;
      expect_ok(first.run(comm::Receive{{&value, sizeof value}, sender, 3}, soon()));
      EXPECT_EQ(value, i);
    }
  }

  // Most of the messages find no room before the receiver has taken others.
  void more_sends_than_there_is_room_for() const {
    std::vector<int> values(kMessages);
    std::vector<comm::Operation> operations;
    for (int i = 0; sends() && i < kMessages; ++i) {
      values[i] = i;
      operations.push_back(first.start(comm::Send{{&values[i], sizeof(int)}, receiver, 3}).value());
    }
    if (receives()) receive_all();
    meet(second);
    for (comm::Operation& operation : operations) expect_ok(operation.wait(soon()));
  }

  // The receiver asks for all of them in the opposite order.
  void many_messages_in_the_opposite_order() const {
    constexpr int kMany = 2000;
    std::vector<int> values(kMany, -1);
    std::vector<comm::Operation> operations;
    for (int i = 0; i < kMany; ++i) {
      if (sends()) values[i] = i;
      int* const value = &values[receives() ? kMany - 1 - i : i];
      const int tag = 100 + (receives() ? kMany - 1 - i : i);
      if (sends()) operations.push_back(first.start(comm::Send{{value, sizeof(int)}, receiver, tag}).value());
      if (receives()) operations.push_back(first.start(comm::Receive{{value, sizeof(int)}, sender, tag}).value());
    }
    for (comm::Operation& operation : operations) expect_ok(operation.wait(soon()));
    for (int i = 0; (sends() || receives()) && i < kMany; ++i) ASSERT_EQ(values[i], i);
  }

  // All of them are sent before the receiver asks for one.
  void messages_that_nobody_has_asked_for(comm::Communicator& meeting_place) const {
    for (int i = 0; sends() && i < kMessages; ++i)
      expect_ok(first.run(comm::Send{{&i, sizeof i}, receiver, 3}, soon()));
    meet(meeting_place);
    if (receives()) receive_all();
  }

  // The sender waits until its memory has been read.
  void a_receive_of_shared_memory() const {
    const Buffer data(first.arena(), Place::kArena, 300'000);
    std::fill_n(data.data(), data.bytes(), std::byte(first.rank()));
    comm::Operation operation;
    if (receives()) operation = first.start(comm::Receive{{data.data(), data.bytes()}, sender, 4}).value();
    if (sends()) expect_ok(first.run(comm::Send{{data.data(), data.bytes()}, receiver, 4}, soon()));
    meet(second);
    if (!receives()) return;
    expect_ok(operation.wait(soon()));
    EXPECT_EQ(std::count(data.data(), data.data() + data.bytes(), std::byte(sender)), 300'000);
  }

  // The sender waits elsewhere while its message is fetched.
  void a_large_send() const {
    std::vector<std::byte> data(300'000, std::byte(first.rank()));
    comm::Operation operation;
    if (sends()) operation = first.start(comm::Send{{data.data(), data.size()}, receiver, 5}).value();
    if (receives()) {
      expect_ok(first.run(comm::Receive{{data.data(), data.size()}, sender, 5}, soon()));
      EXPECT_EQ(std::count(data.begin(), data.end(), std::byte(sender)), 300'000);
    }
    meet(second);
    if (sends()) expect_ok(operation.wait(soon()));
  }

  void an_all_reduce_beside_a_barrier() const {
    std::vector<float> values(300'000, 1.0F);
    const comm::AllReduce args{values.data(), values.data(), values.size()};
    comm::Operation operation;
    if (sends()) {
      operation = first.start(args).value();
    } else {
      expect_ok(first.run(args, soon()));
    }
    meet(second);
    if (sends()) expect_ok(operation.wait(soon()));
    EXPECT_EQ(std::count(values.begin(), values.end(), static_cast<float>(first.group_size())), 300'000);
  }

  // More of them than other ranks see at once, in either group, and the groups in another order on each rank.
  void many_collectives_in_any_order() const {
    constexpr int kMany = 3 * comm::Communicator::kMaxPending;
    std::vector<float> values(2 * kMany, 1.0F);
    std::vector<comm::Operation> operations;
    for (const int half : {0, 1}) {
      const bool in_first = (half == 0) == (first.rank() % 2 == 0);
      for (int i = 0; i < kMany; ++i) {
        float* const value = &values[i + (in_first ? 0 : kMany)];
        operations.push_back((in_first ? first : second).start(comm::AllReduce{value, value, 1}).value());
        EXPECT_EQ(operations.back().sequence(), (in_first ? first : second).sequence());
      }
    }
    float last = 1.0F;
    expect_ok(first.run(comm::AllReduce{&last, &last, 1}, soon()));
    for (comm::Operation& operation : operations) expect_ok(operation.wait(soon()));
    EXPECT_EQ(std::count(values.begin(), values.end(), static_cast<float>(first.group_size())), 2 * kMany);
    EXPECT_EQ(last, static_cast<float>(first.group_size()));
  }

  void run_all() const {
    many_collectives_in_any_order();
    more_sends_than_there_is_room_for();
    many_messages_in_the_opposite_order();
    messages_that_nobody_has_asked_for(first);
    messages_that_nobody_has_asked_for(second);
    a_receive_of_shared_memory();
    a_large_send();
    an_all_reduce_beside_a_barrier();
  }
};

}  // namespace lockstep::test
