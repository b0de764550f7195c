// How the ranks of a group find one another, over a store in memory.
#include "engine/core/membership.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "lockstep/store/hash_store.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using std::chrono::seconds;

const std::string kGroup = "apples";
const Roster kSameNumbers;

Deadline soon() {
  return Deadline::after(seconds(30));
}
// What is not there already will not come.
Deadline now() {
  return Deadline::after(seconds(0));
}

Member member(int rank, int world) {
  return {rank,
          world,
          100 + rank,
          "machine" + std::to_string(rank % 2),
          "node" + std::to_string(rank % 2),
          {"10.0.0." + std::to_string(rank), "fd00::" + std::to_string(rank)}};
}

Result<std::vector<Member>> exchange(Store& store, const Member& me, Deadline deadline,
                                     const Roster& roster = kSameNumbers) {
  return exchange_members(store, {kGroup, roster}, me, deadline);
}

void expect_error(const Status& status, ErrorCode code, const std::string& message) {
  EXPECT_EQ(to_string(status.code()), to_string(code));
  EXPECT_EQ(status.message(), message);
}

TEST(MembershipMulti, EveryRankLearnsOfAllInTheOrderOfRanks) {
  for (const int world : {1, 2, 3, 4, 9}) {
    HashStore store;
    test::run_each(world, [&](int rank) {
      const auto members = exchange(store, member(rank, world), soon());
      ASSERT_TRUE(members.ok()) << members.status().message();
      ASSERT_EQ(members.value().size(), static_cast<std::size_t>(world));
      for (int other = 0; other < world; ++other) {
        const Member expected = member(other, world);
        const Member& got = members.value()[other];
        EXPECT_EQ(got.rank, other);
        EXPECT_EQ(got.world, world);
        EXPECT_EQ(got.pid, expected.pid);
        EXPECT_EQ(got.machine, expected.machine);
        EXPECT_EQ(got.host, expected.host);
        EXPECT_EQ(got.addresses, expected.addresses);
      }
    });
    for (const std::string& key : membership_keys(kGroup)) {
      EXPECT_TRUE(store.delete_key(key).value()) << key;
    }
    EXPECT_EQ(store.num_keys().value(), 0);
  }
}

TEST(Membership, NamesWithSpacesAndMembersWithoutAddressesArrive) {
  HashStore store;
  Member first = member(0, 2), second = member(1, 2);
  first.machine = "my machine\n2";
  first.host = "a host\t";
  first.addresses.clear();
  EXPECT_EQ(exchange(store, first, now()).status().code(), ErrorCode::kTimeout);
  const auto members = exchange(store, second, now());
  ASSERT_TRUE(members.ok()) << members.status().message();
  EXPECT_EQ(members.value()[0].machine, "my_machine_2");
  EXPECT_EQ(members.value()[0].host, "a_host_");
  EXPECT_TRUE(members.value()[0].addresses.empty());
  EXPECT_EQ(members.value()[1].addresses, second.addresses);
}

TEST(Membership, ATimeoutNamesWhoIsMissing) {
  HashStore store;
  expect_error(exchange(store, member(2, 4), now()).status(), ErrorCode::kTimeout,
               "group 'apples': rank(s) 0, 1, 3 did not join");
  expect_error(exchange(store, member(0, 4), now()).status(), ErrorCode::kTimeout,
               "group 'apples': rank(s) 1, 3 did not join");
  const Roster roster({5, 7, 8, 9});
  HashStore other;
  expect_error(exchange(other, member(1, 4), now(), roster).status(), ErrorCode::kTimeout,
               "group 'apples': rank(s) 5, 8, 9 of the world did not join");
}

TEST(MembershipMulti, ARankThatIsThereTwiceIsToldToAll) {
  HashStore store;
  const std::string expected =
      "group 'apples': rank 1 joined twice, as pid 101 on host node1 and as pid 222 on host node7. Give every process "
      "its own RANK; if these are two jobs, give each its own address";
  EXPECT_EQ(exchange(store, member(1, 3), now()).status().code(), ErrorCode::kTimeout);
  Member twin = member(1, 3);
  twin.pid = 222;
  twin.host = "node7";
  expect_error(exchange(store, twin, soon()).status(), ErrorCode::kMismatch, expected);
  test::run_each(2, [&](int i) {
    expect_error(exchange(store, member(2 * i, 3), soon()).status(), ErrorCode::kMismatch, expected);
  });
}

// Even while others wait for ranks that can never come.
TEST(MembershipMulti, AnotherWorldSizeIsToldToAll) {
  HashStore store;
  test::run_each(2, [&](int rank) {
    if (rank == 1) {
      while (!store.check({{membership_keys(kGroup)[0]}}).value()) std::this_thread::yield();
    }
    const Status status = exchange(store, member(rank, rank == 0 ? 3 : 5), soon()).status();
    expect_error(
        status, ErrorCode::kMismatch,
        "group 'apples': rank 0 (host node0, pid 100) expects a world of 3, rank 1 (host node1, pid 101) of 5");
  });
}

TEST(Membership, ARankOfALargerWorldThanTheRosterKnowsHasANumberToo) {
  HashStore store;
  const Roster roster({4, 6});
  EXPECT_EQ(exchange(store, member(0, 2), now(), roster).status().code(), ErrorCode::kTimeout);
  expect_error(
      exchange(store, member(7, 9), now(), roster).status(), ErrorCode::kMismatch,
      "group 'apples': rank 4 of the world (host node0, pid 100) expects a world of 2, rank 7 (host node1, pid "
      "107) of 9");
}

TEST(MembershipMulti, ARefusalIsToldToThoseWhoWait) {
  HashStore store;
  const Status why(ErrorCode::kPermission, "rank 2 is not allowed to use the memory of the others");
  test::run_each(3, [&](int rank) {
    if (rank == 2) return refuse_membership(store, kGroup, why);
    expect_error(exchange(store, member(rank, 3), soon()).status(), why.code(), why.message());
  });
}

TEST(Membership, DamagedLinesAreCorrupt) {
  for (const char* line : {"nonsense", "", "0", "0 2 7 machine", "0 two 7 machine host", "zero 2 7 machine host",
                           "99999999999999 2 7 machine host"}) {
    SCOPED_TRACE(line);
    HashStore store;
    ASSERT_TRUE(store.append(membership_keys(kGroup)[0], std::string(line) + "\n").ok());
    expect_error(exchange(store, member(1, 2), now()).status(), ErrorCode::kCorrupt,
                 "group 'apples': expected 'rank world pid machine host addresses' in the store, found '" +
                     std::string(line) + "'");
  }
  HashStore store;
  ASSERT_TRUE(store.set(membership_keys(kGroup)[1], "refused nonsense").ok());
  expect_error(exchange(store, member(1, 2), now()).status(), ErrorCode::kCorrupt,
               "an outcome in the store is damaged: 'nonsense'");
}

TEST(Membership, ARankThatNoWorldOfThisSizeHasIsCorrupt) {
  for (const int rank : {-1, 2, 1000}) {
    HashStore store;
    ASSERT_TRUE(store.append(membership_keys(kGroup)[0], std::to_string(rank) + " 2 7 machine host\n").ok());
    expect_error(exchange(store, member(0, 2), now()).status(), ErrorCode::kCorrupt,
                 "group 'apples': the store names rank " + std::to_string(rank) +
                     " (host host, pid 7), which a world of 2 does not have");
  }
}

TEST(Membership, ThisProcessDescribesItself) {
  const Member me = describe_this_process(3, 5, "").value();
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.world, 5);
  EXPECT_EQ(me.pid, getpid());
  EXPECT_FALSE(me.host.empty());
  EXPECT_EQ(me.machine, machine_of_this_process().value());
  EXPECT_EQ(describe_this_process(3, 5, "elsewhere").value().machine, "elsewhere");
}

}  // namespace
}  // namespace lockstep::comm
