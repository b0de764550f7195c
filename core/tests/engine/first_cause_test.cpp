// A failure in one group that causes a failure in another: the errors there name the first cause, with ranks as
// numbered in the world.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>

#include "engine/faulty_job.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::expect_names;
using test::FaultyJob;
using test::is_rank;
using test::say_ready;
using test::wait_for_ever;

// The groups of one of three ranks: {2, 0}, {1, 0} and all.
class Groups {
 public:
  Groups() : met_(rendezvous(RendezvousOptions()).value()), arena_(SharedArena::create().value()) {
    for (const std::vector<int>& ranks : {std::vector{2, 0}, {1, 0}, {0, 1, 2}}) {
      const auto found = std::find(ranks.begin(), ranks.end(), met_.rank);
      if (found == ranks.end()) continue;
      CommunicatorOptions options;
      options.rank = static_cast<int>(found - ranks.begin());
      options.group_size = static_cast<int>(ranks.size());
      options.name = ranks.size() == 3 ? "world" : ranks[0] == 2 ? "ends" : "others";
      options.arena = arena_;
      options.world_ranks = ranks;
      groups_[options.name] = Communicator::create(met_.store, options).value();
    }
  }
  ~Groups() {
    groups_.clear();
    (void)met_.release(1s);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  int rank() const { return met_.rank; }
  Communicator& operator[](const std::string& name) { return *groups_.at(name); }
  void wait_until_stopped(int rank) const {
    EXPECT_TRUE(test::wait_for([&] { return test::is_stopped(met_.members[rank].pid); }));
  }
  Status call(const std::string& name) { return groups_.at(name)->run(Barrier{}, Deadline::after(60s)); }

 private:
  Rendezvous met_;
  std::shared_ptr<SharedArena> arena_;
  std::map<std::string, std::unique_ptr<Communicator>> groups_;
};

// Rank 2 stops. Rank 0 sees this in the group "ends" and calls `leave`. Rank 1 waits in `call`.
void tell_of_rank_2(int signal, const std::function<Status(Groups&)>& call, const std::function<void(Groups&)>& leave,
                    const std::function<void(const Status&)>& check) {
  if (!is_rank()) {
    FaultyJob job(3);
    ASSERT_TRUE(job.all_ready());
    job.send_signal(2, signal);
    job.expect_survivors_end(2);
    if (signal == SIGKILL) return job.expect_victim_killed(2);
    job.send_signal(2, SIGKILL);
    return job.expect_victim_killed(2);
  }
  Groups groups;
  EXPECT_TRUE(groups.call("world").ok());
  say_ready();
  if (groups.rank() == 2) wait_for_ever();
  if (groups.rank() == 1) return check(call(groups));
  if (signal == SIGSTOP) groups.wait_until_stopped(2);  // the timeout begins afterwards
  const Status status = groups["ends"].run(Barrier{}, Deadline::after(signal == SIGKILL ? 60s : 1s));
  EXPECT_FALSE(status.ok());
  leave(groups);
}

void tell_of_rank_2(int signal, const std::string& group, const std::function<void(Groups&)>& leave,
                    const std::function<void(const Status&)>& check) {
  tell_of_rank_2(
      signal, [&](Groups& groups) { return groups.call(group); }, leave, check);
}

TEST(FirstCauseFault, WhoLeavesBecauseOfADeathNamesIt) {
  tell_of_rank_2(
      SIGKILL, "others", [](Groups&) {},
      [](const Status& status) {
        expect_names(status, ErrorCode::kPeerFailed, "rank 2 of the world (pid ");
        expect_names(status, ErrorCode::kPeerFailed, "died before barrier #1 of group 'ends'");
        expect_names(status, ErrorCode::kPeerFailed, ". After that rank 0 of the world (pid ");
        expect_names(status, ErrorCode::kPeerFailed, "left the group before barrier #1 of group 'others'");
        EXPECT_TRUE(status.message().starts_with("rank 2 of the world")) << status.message();
      });
}

TEST(FirstCauseFault, WhoDiesOfADeathNamesIt) {
  tell_of_rank_2(
      SIGKILL, "others", [](Groups&) { _exit(testing::Test::HasFailure() ? 1 : 0); },
      [](const Status& status) {
        EXPECT_TRUE(status.message().starts_with("rank 2 of the world (pid ")) << status.message();
        expect_names(status, ErrorCode::kPeerFailed, ". After that rank 0 of the world (pid ");
        expect_names(status, ErrorCode::kPeerFailed, "died before barrier #1 of group 'others'");
      });
}

TEST(FirstCauseFault, AnAbortBecauseOfADeathNamesIt) {
  tell_of_rank_2(
      SIGKILL, "others", [](Groups& groups) { groups["others"].abort("rank 0 has had enough"); },
      [](const Status& status) {
        EXPECT_TRUE(status.message().starts_with("rank 2 of the world (pid ")) << status.message();
        expect_names(status, ErrorCode::kAborted, ". After that rank 0 has had enough");
      });
}

// Without a call of its own in that group.
TEST(FirstCauseFault, ADeathIsToldToEveryGroupThatTheDeadRankIsIn) {
  tell_of_rank_2(
      SIGKILL, "world",
      [](Groups& groups) {
        expect_names(groups["world"].health(), ErrorCode::kPeerFailed, "rank 2 ");
        EXPECT_TRUE(groups["others"].health().ok()) << groups["others"].health().message();
      },
      [](const Status& status) { expect_names(status, ErrorCode::kPeerFailed, "rank 2"); });
}

TEST(FirstCauseFault, WhoLeavesBecauseOfATimeoutNamesIt) {
  tell_of_rank_2(
      SIGSTOP, "others", [](Groups&) {},
      [](const Status& status) {
        EXPECT_TRUE(status.message().starts_with("barrier #1 of group 'ends' timed out on rank 0 of the world: "))
            << status.message();
        expect_names(status, ErrorCode::kPeerFailed,
                     "rank(s) 2 (no call yet, stopped by a signal) of the world never called it");
        expect_names(status, ErrorCode::kPeerFailed, "left the group before barrier #1 of group 'others'");
      });
}

// Rank 0 has a known cause, sends nothing, and does not leave.
void time_out_on_a_message_from(int source) {
  tell_of_rank_2(
      SIGKILL,
      [&](Groups& groups) {
        // Rank 0 breaks it when it has seen the death.
        EXPECT_TRUE(test::wait_for([&] { return !groups["world"].health().ok(); }));
        int value = 0;
        return groups["others"].run(Receive{{&value, sizeof value}, source}, Deadline::after(100ms));
      },
      [](Groups& groups) { EXPECT_TRUE(test::wait_for([&] { return !groups["others"].health().ok(); })); },
      [](const Status& status) {
        EXPECT_TRUE(status.message().starts_with("rank 2 ")) << status.message();
        expect_names(status, ErrorCode::kTimeout, ". After that recv from ");
      });
}

TEST(FirstCauseFault, AMessageThatTimesOutNamesIt) {
  time_out_on_a_message_from(1);
}

TEST(FirstCauseFault, AMessageFromAnyRankThatTimesOutNamesIt) {
  time_out_on_a_message_from(kAnySource);
}

// What a rank has seen fail before a group was made has nothing to do with that group.
TEST(FirstCauseFault, OfGroupsMadeLaterNothingIsSaid) {
  if (!is_rank()) {
    FaultyJob job(2);
    return job.expect_survivors_end(-1);
  }
  auto met = rendezvous(RendezvousOptions()).value();
  CommunicatorOptions options;
  options.rank = met.rank;
  options.group_size = met.world_size;
  options.name = "first";
  const auto first = Communicator::create(met.store, options).value();
  if (met.rank == 0) first->abort("an old failure");
  EXPECT_TRUE(test::wait_for([&] { return !first->health().ok(); }));
  options.name = "second";
  auto second = Communicator::create(met.store, options).value();
  if (met.rank == 0) {
    second.reset();
  } else {
    const Status status = second->run(Barrier{}, Deadline::after(60s));
    EXPECT_TRUE(status.message().starts_with("rank 0 (pid ")) << status.message();
  }
  (void)met.release(1s);
}

}  // namespace
}  // namespace lockstep::comm
