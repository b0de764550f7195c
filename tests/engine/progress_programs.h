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

  void run_all() const {
    more_sends_than_there_is_room_for();
    messages_that_nobody_has_asked_for(first);
    messages_that_nobody_has_asked_for(second);
    a_receive_of_shared_memory();
    a_large_send();
    an_all_reduce_beside_a_barrier();
  }
};

}  // namespace lockstep::test
