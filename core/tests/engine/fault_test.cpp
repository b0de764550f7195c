// Ranks that are killed or frozen on purpose. The test is the parent; it starts itself once per rank.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "engine/calls.h"
#include "engine/faulty_job.h"
#include "engine/process_group.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::expect_names;
using test::FaultyJob;
using test::is_rank;
using test::Place;
using test::ProcessGroup;
using test::say_ready;
using test::wait_for_ever;

void kill_when_ready(int world, int victim) {
  FaultyJob job(world);
  ASSERT_TRUE(job.all_ready());
  job.send_signal(victim, SIGKILL);
  job.expect_survivors_end(victim);
  job.expect_victim_killed(victim);
}

TEST(CommunicatorFault, KilledBeforeItPosts) {
  if (!is_rank()) return kill_when_ready(3, 1);
  const ProcessGroup group;
  EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
  say_ready();
  if (group->rank() == 1) wait_for_ever();
  float value = 1;
  const Status status = group->run(AllReduce{&value, &value, 1}, Deadline::never());
  expect_names(status, ErrorCode::kPeerFailed, "rank 1 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "died before all_reduce #2 of group 'world' (last call barrier #1)");
  EXPECT_EQ(group->run(Barrier{}, Deadline::never()).message(), status.message());
}

// Rank 1 ends in another way than by SIGKILL, while the others wait for it in a collective and in a message.
void end_in_another_way(void (*end)()) {
  if (!is_rank()) {
    FaultyJob job(3);
    ASSERT_TRUE(job.all_ready());
    return job.expect_survivors_end(1);
  }
  const ProcessGroup group;
  EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
  say_ready();
  if (group->rank() == 1) end();
  char byte = 0;
  const Status status = group->rank() == 0 ? group->run(Barrier{}, Deadline::never())
                                           : group->run(Receive{{&byte, 1}, 1, 0}, Deadline::never());
  expect_names(status, ErrorCode::kPeerFailed, "rank 1 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "died before ");
  EXPECT_EQ(group->run(Barrier{}, Deadline::never()).message(), status.message());
}

TEST(CommunicatorFault, EndsBySegmentationFault) {
  end_in_another_way([] {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  });
}
TEST(CommunicatorFault, EndsByExitWithoutLeaving) {
  end_in_another_way([] { _exit(0); });
}

// Operations without end: the rank dies inside one of them, or between two.
void go_on_until_it_fails(Kind kind, Place place, bool blocking) {
  const ProcessGroup group;
  test::Spec spec;
  spec.kind = kind;
  spec.count = 3'000'000;
  test::Call call(*group, spec, {place, place, kind == Kind::kAllReduce, blocking});
  Status status;
  for (int round = 0; status.ok(); ++round) {
    if (round == 2) say_ready();
    if (blocking) {
      status = call.run(Deadline::never());
    } else {
      auto operation = call.start();
      status = operation.ok() ? operation->wait(Deadline::never()) : operation.status();
    }
  }
  expect_names(status, ErrorCode::kPeerFailed, "rank 2 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "died ");
}

TEST(CommunicatorFault, KilledWithinALargeSharedAllReduce) {
  if (!is_rank()) return kill_when_ready(3, 2);
  go_on_until_it_fails(Kind::kAllReduce, Place::kArena, true);
}

TEST(CommunicatorFault, KilledWithinALargeStreamedAllReduce) {
  if (!is_rank()) return kill_when_ready(3, 2);
  go_on_until_it_fails(Kind::kAllReduce, Place::kPrivate, true);
}

TEST(CommunicatorFault, KilledWithinALargeStreamedAllToAll) {
  if (!is_rank()) return kill_when_ready(3, 2);
  go_on_until_it_fails(Kind::kAllToAll, Place::kPrivate, true);
}

TEST(CommunicatorFault, RootKilledWithinALargeStreamedBroadcast) {
  if (!is_rank()) return kill_when_ready(3, 2);
  const ProcessGroup group;
  std::vector<std::byte> data(10'000'000);
  Status status;
  for (int round = 0; status.ok(); ++round) {
    if (round == 2) say_ready();
    status = group->run(Broadcast{data.data(), data.size(), 2}, Deadline::never());
  }
  expect_names(status, ErrorCode::kPeerFailed, "rank 2 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "died ");
}

TEST(CommunicatorFault, KilledWithinALargeAsyncAllReduce) {
  if (!is_rank()) return kill_when_ready(4, 2);
  go_on_until_it_fails(Kind::kAllReduce, Place::kPrivate, false);
}

TEST(CommunicatorFault, KilledWhileOthersSleepInDifferentCalls) {
  if (!is_rank()) return kill_when_ready(4, 1);
  const ProcessGroup group;
  say_ready();
  if (group->rank() == 1) wait_for_ever();
  std::vector<std::byte> data(100'000);
  Status status;
  if (group->rank() == 0) status = group->run(Receive{{data.data(), 4}, 1, 0}, Deadline::never());
  if (group->rank() == 2) status = group->run(Barrier{}, Deadline::never());
  if (group->rank() == 3) {
    auto operation = group->start(Broadcast{data.data(), data.size(), 1});
    status = operation.ok() ? operation->wait(Deadline::never()) : operation.status();
  }
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
  EXPECT_NE(status.message().find("died"), std::string::npos) << status.message();
  EXPECT_EQ(status.message(), group->health().message());
}

TEST(CommunicatorFault, KilledWhileOthersPoll) {
  if (!is_rank()) return kill_when_ready(3, 1);
  const ProcessGroup group;
  say_ready();
  if (group->rank() == 1) wait_for_ever();
  int value = 0;
  auto operation = group->rank() == 0 ? group->start(Receive{{&value, sizeof value}, 1, 0}) : group->start(Barrier{});
  while (!operation->is_completed()) std::this_thread::yield();
  expect_names(operation->wait(Deadline::never()), ErrorCode::kPeerFailed, "died");
}

TEST(CommunicatorFault, RankZeroIsNoMoreThanAnother) {
  if (!is_rank()) return kill_when_ready(2, 0);
  const ProcessGroup group;
  say_ready();
  if (group->rank() == 0) wait_for_ever();
  expect_names(group->run(Barrier{}, Deadline::never()), ErrorCode::kPeerFailed, "rank 0 (pid ");
}

// Becomes another program: the process goes on, under the same number. A fork of it may go on too.
void replace_program(bool leave_a_fork) {
  const pid_t self = getpid();
  if (leave_a_fork && fork() == 0) {
    while (getppid() == self) std::this_thread::sleep_for(10ms);
    _exit(0);
  }
  say_ready();
  execl("/bin/sleep", "sleep", "100", nullptr);
  std::abort();
}

void replace_when_ready(int world, int victim) {
  FaultyJob job(world);
  ASSERT_TRUE(job.all_ready());
  job.expect_survivors_end(victim);
  job.send_signal(victim, SIGKILL);
  job.expect_victim_killed(victim);
}

TEST(CommunicatorFault, ReplacedByAnotherProgram) {
  if (!is_rank()) return replace_when_ready(3, 1);
  const ProcessGroup group;
  EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
  if (group->rank() == 1) replace_program(/*leave_a_fork=*/false);
  say_ready();
  const Status status = group->run(Barrier{}, Deadline::never());
  expect_names(status, ErrorCode::kPeerFailed, "rank 1 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "ended or replaced its program (exec) before barrier #2");
}

TEST(CommunicatorFault, ReplacedWhileItsForkLivesOn) {
  if (!is_rank()) return replace_when_ready(2, 0);
  const ProcessGroup group;
  EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
  if (group->rank() == 0) replace_program(/*leave_a_fork=*/true);
  say_ready();
  char byte = 0;
  const Status status = group->run(Receive{{&byte, 1}, 0, 0}, Deadline::never());
  expect_names(status, ErrorCode::kPeerFailed, "rank 0 (pid ");
  expect_names(status, ErrorCode::kPeerFailed, "ended or replaced its program (exec) before recv from rank 0 with tag");
}

TEST(CommunicatorFault, KilledWhileItsForkLivesOn) {
  if (!is_rank()) return kill_when_ready(2, 1);
  const ProcessGroup group;
  EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
  if (group->rank() == 1) {
    const pid_t self = getpid();
    if (fork() == 0) {
      while (getppid() == self) std::this_thread::sleep_for(10ms);
      std::this_thread::sleep_for(200ms);
      _exit(0);
    }
  }
  say_ready();
  if (group->rank() == 1) wait_for_ever();
  expect_names(group->run(Barrier{}, Deadline::never()), ErrorCode::kPeerFailed, "rank 1 (pid ");
}

TEST(CommunicatorFault, FrozenRankIsNamedByTheTimeout) {
  if (is_rank()) {
    const ProcessGroup group;
    EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
    say_ready();
    if (group->rank() == 1) wait_for_ever();
    // Rank 0's timeout begins when rank 2 has called and rank 1 has stopped.
    char token = 0;
    Status status;
    if (group->rank() == 2) {
      auto operation = group->start(Barrier{});
      EXPECT_TRUE(group->run(Send{{&token, 1}, 0, 0}, Deadline::after(30s)).ok());
      status = operation.ok() ? operation->wait(Deadline::after(30s)) : operation.status();
    } else {
      EXPECT_TRUE(group->run(Receive{{&token, 1}, 2, 0}, Deadline::after(30s)).ok());
      EXPECT_TRUE(group.wait_until_stopped(1));
      status = group->run(Barrier{}, Deadline::after(500ms));
    }
    expect_names(status, ErrorCode::kTimeout, "barrier #2 of group 'world' timed out on rank 0");
    expect_names(status, ErrorCode::kTimeout, "rank(s) 1 (last call barrier #1, stopped by a signal) never called it");
    return;
  }
  FaultyJob job(3);
  job.expect_survivors_end_beside_frozen(1);
}

// Rank 0 hears of rank 2 only through rank 1, which is on the machine of rank 2 and waits for it.
TEST(CommunicatorFault, AFrozenRankBehindAnotherIsNamedOnTheOtherMachine) {
  if (is_rank()) {
    setenv("LOCKSTEP_MACHINE", std::string(std::getenv("RANK")) == "0" ? "first" : "second", 1);
    const ProcessGroup group;
    EXPECT_TRUE(group->run(Barrier{}, Deadline::after(30s)).ok());
    std::vector<float> values(300'000, 1.0F);
    const AllReduce call{values.data(), values.data(), values.size()};
    if (group->rank() == 2) {
      const auto operation = group->start(call);
      say_ready();
      wait_for_ever();
    }
    say_ready();
    EXPECT_TRUE(group.wait_until_stopped(2));
    const Status status = group->run(call, Deadline::after(group->rank() == 0 ? 1500ms : 30s));
    expect_names(status, ErrorCode::kTimeout,
                 "all_reduce #2 of group 'world' timed out on rank 0: every rank called it");
    expect_names(status, ErrorCode::kTimeout, "; rank(s) 2 (on ");
    expect_names(status, ErrorCode::kTimeout, ", stopped by a signal) stand still");
    return;
  }
  FaultyJob job(3);
  job.expect_survivors_end_beside_frozen(2);
}

// Frozen inside the operation, or before it: named either way.
TEST(CommunicatorFault, FrozenRankIsNamedWithinAStream) {
  if (is_rank()) {
    const ProcessGroup group;
    test::Spec spec;
    spec.kind = Kind::kAllReduce;
    spec.count = 3'000'000;
    test::Call call(*group, spec, {Place::kPrivate, Place::kPrivate, true, true});
    Status status;
    for (int round = 0; status.ok(); ++round) {
      if (round == 2) say_ready();
      status = call.run(Deadline::after(5s));  // much longer than ranks that run take
    }
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
    EXPECT_NE(status.message().find("rank(s) 2 "), std::string::npos) << status.message();
    return;
  }
  FaultyJob job(3);
  job.expect_survivors_end_beside_frozen(2);
}

// With `has_members` the ranks know one another from the rendezvous.
void die_while_joining(bool has_members, const std::string& error) {
  if (is_rank()) {
    auto met = rendezvous(RendezvousOptions()).value();
    say_ready();
    if (met.rank == 1) wait_for_ever();
    CommunicatorOptions options;
    options.rank = met.rank;
    options.group_size = met.world_size;
    options.timeout = 5s;  // much longer than the other two need to come
    if (has_members) options.members = met.members;
    const Status status = Communicator::create(met.store, options).status();
    expect_names(status, ErrorCode::kTimeout, error);
    (void)met.release(1s);
    return;
  }
  kill_when_ready(3, 1);
}

TEST(CommunicatorFault, DeathWhileJoiningIsNoHang) {
  die_while_joining(false, "only 2 of 3 ranks joined");
}
TEST(CommunicatorFault, DeathWhileKnownMembersJoinIsNoHang) {
  die_while_joining(true, "group 'world': rank(s) 1 did not join");
}

TEST(GroupsOverMachinesFault, OfADeadRankAllBreak) {
  constexpr int kVictim = 2;
  if (!is_rank()) return kill_when_ready(3, kVictim);
  setenv("LOCKSTEP_MACHINE", std::getenv("RANK"), 1);
  const ProcessGroup first;
  const auto second = first.join("second");
  const auto third = first.join("third");
  for (const auto* group : {&second, &third}) EXPECT_TRUE((*group)->run(Barrier{}, Deadline::after(30s)).ok());
  EXPECT_TRUE(first->run(Barrier{}, Deadline::after(30s)).ok());
  say_ready();
  if (first->rank() == kVictim) wait_for_ever();
  // Another thread waits in another group meanwhile.
  Status of_second;
  std::thread other([&] { of_second = second->run(Barrier{}, Deadline::never()); });
  const Status of_first = first->run(Barrier{}, Deadline::never());
  other.join();
  const Status of_third = third->run(Barrier{}, Deadline::never());
  for (const Status& status : {of_first, of_second, of_third})
    expect_names(status, ErrorCode::kPeerFailed, "rank 2 (pid ");
}

}  // namespace
}  // namespace lockstep::comm
