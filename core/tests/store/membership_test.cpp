// How the ranks of a group find one another, over a store in memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "base/host.h"
#include "lockstep/store/hash_store.h"
#include "store/deadlines.h"
#include "store/membership/exchange_members.h"
#include "store/membership/machine.h"
#include "store/membership/meeting.h"
#include "store/membership/same_choice.h"
#include "support/run_each.h"

namespace lockstep::comm {
namespace {

using std::chrono::seconds;

const std::string kGroup = "apples";
const Roster kSameNumbers;

Member member(int rank, int size) {
  return {rank,
          size,
          100 + rank,
          "machine" + std::to_string(rank % 2),
          "node" + std::to_string(rank % 2),
          {"10.0.0." + std::to_string(rank), "fd00::" + std::to_string(rank)}};
}

Result<std::vector<Member>> exchange(Store& store, const Result<Member>& me, Deadline deadline,
                                     const Roster& roster = kSameNumbers) {
  return exchange_members(store, kGroup, roster, me, deadline);
}

void expect_error(const Status& status, ErrorCode code, const std::string& message) {
  EXPECT_EQ(to_string(status.code()), to_string(code));
  EXPECT_EQ(status.message(), message);
}

TEST(MembershipMulti, EveryRankLearnsOfAllInTheOrderOfRanks) {
  for (const int size : {1, 2, 3, 4, 9}) {
    HashStore store;
    test::run_each(size, [&](int rank) {
      const auto members = exchange(store, member(rank, size), soon());
      ASSERT_TRUE(members.ok()) << members.status().message();
      ASSERT_EQ(members.value().size(), static_cast<std::size_t>(size));
      for (int other = 0; other < size; ++other) {
        const Member expected = member(other, size);
        const Member& got = members.value()[other];
        EXPECT_EQ(got.rank, other);
        EXPECT_EQ(got.group_size, size);
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

// Rank `rank` in a thread of its own, which has written its record when this returns.
std::future<Status> wait_as(Store& store, const Member& me, Deadline deadline, const Roster& roster = kSameNumbers) {
  auto outcome = std::async(std::launch::async,
                            [&store, me, deadline, roster] { return exchange(store, me, deadline, roster).status(); });
  const std::string line = std::to_string(me.rank) + " " + std::to_string(me.group_size) + " ";
  while (store.get(membership_keys(kGroup)[0], soon()).value().find(line) == std::string::npos) {
    std::this_thread::yield();
  }
  return outcome;
}

TEST(MembershipMulti, NamesWithSpacesAndMembersWithoutAddressesArrive) {
  HashStore store;
  Member first = member(0, 2), second = member(1, 2);
  first.machine = "my machine\n2";
  first.host = "a host\t";
  first.addresses.clear();
  auto other = wait_as(store, first, soon());
  const auto members = exchange(store, second, soon());
  ASSERT_TRUE(members.ok()) << members.status().message();
  EXPECT_EQ(members.value()[0].machine, "my_machine_2");
  EXPECT_EQ(members.value()[0].host, "a_host_");
  EXPECT_TRUE(members.value()[0].addresses.empty());
  EXPECT_EQ(members.value()[1].addresses, second.addresses);
  EXPECT_TRUE(other.get().ok());
}

TEST(Membership, ATimeoutNamesWhoIsMissingToAllThatCome) {
  const std::string advice = ". Look for what stopped the missing ranks, or raise the timeout if they start late";
  HashStore store;
  const std::string expected =
      "only 1 of 4 ranks joined within 0.0 s. Joined: rank 2 (host node0, pid 102). Missing: rank 0, 1, 3" + advice;
  expect_error(exchange(store, member(2, 4), now()).status(), ErrorCode::kTimeout, expected);
  expect_error(exchange(store, member(0, 4), now()).status(), ErrorCode::kTimeout, expected);  // too late
  HashStore other;
  expect_error(exchange(other, member(1, 4), now(), Roster({5, 7, 8, 9})).status(), ErrorCode::kTimeout,
               "only 1 of 4 ranks joined within 0.0 s. Joined: rank 7 of the world (host node1, pid 101). Missing: "
               "rank 5, 8, 9 of the world" +
                   advice);
}

TEST(Membership, ALastRankThatStopsBeforeTheOutcomeIsNamed) {
  HashStore store;
  Meeting meeting{"so far", "outcome", 2};
  // It comes after rank 0 has looked who is there, and publishes nothing.
  meeting.check = [&store](const std::string&) { return store.append("so far", "1 last\n"); };
  meeting.missing = [](const std::string&, std::chrono::duration<double>) {
    return Status(ErrorCode::kInternal, "nobody is missing");
  };
  expect_error(meet(store, meeting, "0 first\n", now()).status(), ErrorCode::kTimeout,
               "all 2 ranks came within 0.0 s, but the last of them, which wrote '1 last', stopped before it told the "
               "others");
}

TEST(MembershipMulti, ARankThatIsThereTwiceIsToldToAll) {
  HashStore store;
  const std::string expected =
      "rank 1 joined twice, as pid 101 on host node1 and as pid 222 on host node7. Give every process its own RANK; if "
      "these are two jobs, give each its own address";
  auto first = wait_as(store, member(1, 3), soon());
  Member twin = member(1, 3);
  twin.pid = 222;
  twin.host = "node7";
  expect_error(exchange(store, twin, soon()).status(), ErrorCode::kMismatch, expected);
  expect_error(first.get(), ErrorCode::kMismatch, expected);
  test::run_each(2, [&](int i) {
    expect_error(exchange(store, member(2 * i, 3), soon()).status(), ErrorCode::kMismatch, expected);
  });
}

TEST(MembershipMulti, ALatecomerWithATakenRankHurtsNobody) {
  HashStore store;
  auto first = wait_as(store, member(0, 2), soon());
  EXPECT_TRUE(exchange(store, member(1, 2), soon()).ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(exchange(store, member(1, 2), soon()).status().code(), ErrorCode::kMismatch);
  EXPECT_EQ(store.get(membership_keys(kGroup)[1], now()).value().find("refused"), std::string::npos);
}

// Even while others wait for ranks that can never come.
TEST(MembershipMulti, AnotherGroupSizeIsToldToAll) {
  HashStore store;
  const std::string expected =
      "the ranks disagree about the group size: rank 0 (host node0, pid 100) says 3, rank 1 (host node1, pid 101) says "
      "5. Give all the same (for the world: WORLD_SIZE)";
  auto first = wait_as(store, member(0, 3), soon());
  expect_error(exchange(store, member(1, 5), soon()).status(), ErrorCode::kMismatch, expected);
  expect_error(first.get(), ErrorCode::kMismatch, expected);
}

TEST(MembershipMulti, ARankOfALargerGroupThanTheRosterKnowsHasANumberToo) {
  HashStore store;
  const Roster roster({4, 6});
  auto first = wait_as(store, member(0, 2), soon(), roster);
  const std::string expected =
      "the ranks disagree about the group size: rank 4 of the world (host node0, pid 100) says 2, rank 7 (host node1, "
      "pid 107) says 9. Give all the same (for the world: WORLD_SIZE)";
  expect_error(exchange(store, member(7, 9), soon(), roster).status(), ErrorCode::kMismatch, expected);
  expect_error(first.get(), ErrorCode::kMismatch, expected);
}

TEST(MembershipMulti, ARankThatCannotJoinIsToldToThoseWhoWait) {
  HashStore store;
  const Status why(ErrorCode::kIo, "rank 2 (host node0, pid 102): it is not known which machine this is");
  test::run_each(3, [&](int rank) {
    const Result<Member> me = rank == 2 ? Result<Member>(why) : Result<Member>(member(rank, 3));
    expect_error(exchange(store, me, soon()).status(), why.code(), why.message());
  });
}

TEST(Membership, DamagedLinesAreCorrupt) {
  for (const char* line : {"nonsense", "", "0", "0 2 7 machine", "0 two 7 machine host", "zero 2 7 machine host",
                           "99999999999999 2 7 machine host"}) {
    SCOPED_TRACE(line);
    HashStore store;
    ASSERT_TRUE(store.append(membership_keys(kGroup)[0], std::string(line) + "\n").ok());
    expect_error(exchange(store, member(1, 2), now()).status(), ErrorCode::kCorrupt,
                 "expected 'rank size pid machine host addresses' in the store, found '" + std::string(line) + "'");
  }
  HashStore store;
  ASSERT_TRUE(store.set(membership_keys(kGroup)[1], "refused nonsense").ok());
  expect_error(exchange(store, member(1, 2), now()).status(), ErrorCode::kCorrupt,
               "an outcome in the store is damaged: 'nonsense'");
}

TEST(Membership, ARankOutsideItsGroupIsNamed) {
  for (const int rank : {-1, 2, 1000}) {
    HashStore store;
    ASSERT_TRUE(store.append(membership_keys(kGroup)[0], std::to_string(rank) + " 2 7 machine host\n").ok());
    expect_error(
        exchange(store, member(0, 2), now()).status(), ErrorCode::kMismatch,
        "rank " + std::to_string(rank) + " (host host, pid 7) is outside the group of 2: ranks go from 0 to 1");
  }
}

// Of three ranks; every second one has the default.
std::vector<Status> outcomes_of(HashStore& store, const std::vector<std::string>& values) {
  std::vector<Status> outcomes(values.size());
  test::run_each(static_cast<int>(values.size()), [&](int rank) {
    outcomes[rank] = check_same_choice(store, "group", Roster({4, 6, 8}), rank, static_cast<int>(values.size()),
                                       {values[rank], rank % 2 == 1}, soon());
  });
  EXPECT_EQ(store.num_keys().value(), 0);
  return outcomes;
}

TEST(MembershipMulti, ChoicesThatDifferAreToldToAll) {
  HashStore store;
  for (const Status& outcome : outcomes_of(store, {"a b", "a b", "a b"}))
    EXPECT_TRUE(outcome.ok()) << outcome.message();
  // Ranks that come late know more than those that learn of the first difference, but all get one text.
  std::string told;
  for (const Status& outcome : outcomes_of(store, {"a", "b", "a"})) {
    EXPECT_EQ(outcome.code(), ErrorCode::kMismatch);
    EXPECT_NE(outcome.message().find("'b' (the default) on rank(s) 6 of the world"), std::string::npos)
        << outcome.message();
    if (told.empty()) told = outcome.message();
    EXPECT_EQ(outcome.message(), told);
  }
  // One rank cannot choose.
  test::run_each(2, [&](int rank) {
    if (rank == 0) return refuse_choice(store, "wrong", 2, {ErrorCode::kMismatch, "rank(s) 0 could not take part"});
    expect_error(check_same_choice(store, "wrong", kSameNumbers, 1, 2, {"a", false}, soon()), ErrorCode::kMismatch,
                 "rank(s) 0 could not take part");
  });
  EXPECT_EQ(store.num_keys().value(), 0);
  // Nobody has asked for anything.
  test::run_each(2, [&](int rank) {
    EXPECT_TRUE(check_same_choice(store, "other", kSameNumbers, rank, 2, {std::to_string(rank), true}, soon()).ok());
  });
  // An option is no matter of defaults.
  test::run_each(2, [&](int rank) {
    expect_error(
        check_same_choice(store, "option", kSameNumbers, rank, 2, {"a", true, "values", rank == 1, "b"}, soon()),
        ErrorCode::kMismatch, "rank(s) 1 give(s) b, and rank(s) 0 do(es) not; all ranks need the same");
  });
  expect_error(check_same_choice(store, "third", Roster({4, 6}), 1, 2, {"a", false}, now()), ErrorCode::kTimeout,
               "only 1 of 2 ranks came within 0.0 s; missing: rank(s) 4 of the world");
}

TEST(Membership, ContainersThatCannotShareMemoryAreMachinesOfTheirOwn) {
  const std::string boot = "01234567-89ab-cdef-0123-456789abcdef";
  const auto word = [&](std::uint64_t network, std::optional<std::uint64_t> user, const char* own) {
    return machine_word({boot, network, user}, own);
  };
  EXPECT_EQ(word(7, 1000, "a"), boot + ":7:1000");
  EXPECT_EQ(why_apart(word(7, 1000, "a"), word(7, 1000, "b")), "");
  EXPECT_NE(why_apart(word(7, 1000, "a"), word(8, 1000, "b")).find("different networks"), std::string::npos);
  EXPECT_NE(why_apart(word(7, 1000, "a"), word(7, 0, "b")).find("different users (1000 and 0)"), std::string::npos);
  EXPECT_NE(why_apart(word(7, {}, "a"), word(7, {}, "b")).find("does not know"), std::string::npos);
  // Without /proc nothing is known, so nothing is shared.
  EXPECT_NE(machine_word({}, "a"), machine_word({}, "b"));
  EXPECT_NE(why_apart(machine_word({}, "a"), word(7, 0, "b")).find("/proc is not mounted"), std::string::npos);
  EXPECT_NE(machine_word({boot, 0, 1000}, "a"), machine_word({boot, 0, 1000}, "b"));
  // Other machines, and names that somebody has chosen.
  EXPECT_EQ(why_apart(word(7, 1000, "a"), "11234567-89ab-cdef-0123-456789abcdef:7:1000"), "");
  EXPECT_EQ(why_apart("a", "b"), "");
  EXPECT_EQ(why_apart("a:b:c", word(7, 1000, "a")), "");
}

TEST(Membership, AUserIsTheSameWhateverAContainerCallsIt) {
  const std::string everybody = "         0          0 4294967295\n";
  EXPECT_EQ(outside_user(everybody, 1000), 1000U);
  EXPECT_EQ(outside_user("0 1000 1\n1 100000 65536\n", 0), 1000U);
  EXPECT_EQ(outside_user("0 1000 1\n1 100000 65536\n", 33), 100032U);
  EXPECT_EQ(outside_user("0 1000 1\n1 100000 65536\n", 65537), std::nullopt);
  EXPECT_EQ(outside_user("1000 1000 1\n", 1000), 1000U);
  for (const char* nothing : {"", "nonsense", "0 1000"}) EXPECT_EQ(outside_user(nothing, 0), std::nullopt) << nothing;
}

TEST(Membership, ThisProcessDescribesItself) {
  const Member me = describe_this_process(3, 5).value();
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.group_size, 5);
  EXPECT_EQ(me.pid, getpid());
  EXPECT_FALSE(me.host.empty());
  EXPECT_EQ(me.machine, describe_this_process(0, 1).value().machine);
  EXPECT_EQ(me.addresses, addresses_of_machine().value());
  EXPECT_EQ(describe_this_process(3, 5, "elsewhere").value().machine, "elsewhere");
}

}  // namespace
}  // namespace lockstep::comm
