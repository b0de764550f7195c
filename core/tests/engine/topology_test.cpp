// Which ranks share a machine, for every way to place few ranks on few machines.
#include "engine/core/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lockstep::comm {
namespace {

constexpr int kRanks = 6;
constexpr int kMachines = 4;

std::vector<Member> members_on(const std::vector<int>& machine_of) {
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < machine_of.size(); ++rank) {
    const std::string machine = std::to_string(machine_of[rank]);
    members.push_back({static_cast<int>(rank), static_cast<int>(machine_of.size()), 100 + static_cast<int>(rank),
                       "machine" + machine, "node" + machine});
  }
  return members;
}

// fn(machine_of, topology) for each assignment of 1 to kRanks ranks to kMachines machines.
template <typename Function>
void for_each_topology(const Function& fn) {
  for (int size = 1; size <= kRanks; ++size) {
    std::vector<int> machine_of(size, 0);
    while (true) {
      SCOPED_TRACE(testing::PrintToString(machine_of));
      fn(machine_of, Topology(members_on(machine_of)));
      if (testing::Test::HasFailure()) return;
      int digit = 0;
      while (digit < size && ++machine_of[digit] == kMachines) machine_of[digit++] = 0;
      if (digit == size) break;
    }
  }
}

TEST(Topology, MachinesAreNumberedInTheOrderOfTheirFirstRanks) {
  for_each_topology([](const std::vector<int>& machine_of, const Topology& topology) {
    std::vector<int> order;
    for (std::size_t rank = 0; rank < machine_of.size(); ++rank) {
      auto found = std::find(order.begin(), order.end(), machine_of[rank]);
      if (found == order.end()) found = order.insert(order.end(), machine_of[rank]);
      ASSERT_EQ(topology.machine_of(static_cast<int>(rank)), found - order.begin());
    }
    ASSERT_EQ(topology.size(), static_cast<int>(machine_of.size()));
    ASSERT_EQ(topology.machines(), static_cast<int>(order.size()));
  });
}

TEST(Topology, MachineAndIndexAreTheInverseOfRankAt) {
  for_each_topology([](const std::vector<int>& machine_of, const Topology& topology) {
    for (int rank = 0; rank < topology.size(); ++rank) {
      const int machine = topology.machine_of(rank);
      ASSERT_EQ(topology.rank_at(machine, topology.index_of(rank)), rank);
      ASSERT_EQ(topology.member(rank).rank, rank);
      ASSERT_EQ(topology.member(rank).machine, "machine" + std::to_string(machine_of[rank]));
    }
    int ranks = 0;
    for (int machine = 0; machine < topology.machines(); ++machine) {
      ranks += topology.size(machine);
      ASSERT_EQ(topology.ranks(machine).size(), static_cast<std::size_t>(topology.size(machine)));
      ASSERT_TRUE(std::is_sorted(topology.ranks(machine).begin(), topology.ranks(machine).end()));
      for (int index = 0; index < topology.size(machine); ++index) {
        ASSERT_EQ(topology.machine_of(topology.rank_at(machine, index)), machine);
        ASSERT_EQ(topology.index_of(topology.rank_at(machine, index)), index);
      }
    }
    ASSERT_EQ(ranks, topology.size());
  });
}

TEST(Topology, EveryMachineHasARankOfEveryRail) {
  for_each_topology([](const std::vector<int>&, const Topology& topology) {
    ASSERT_GE(topology.rails(), 1);
    bool smallest = false;
    for (int machine = 0; machine < topology.machines(); ++machine) {
      ASSERT_LE(topology.rails(), topology.size(machine));
      smallest = smallest || topology.rails() == topology.size(machine);
    }
    ASSERT_TRUE(smallest);
    for (int rail = 0; rail < topology.rails(); ++rail) {
      for (int a = 0; a < topology.machines(); ++a) {
        for (int b = 0; b < topology.machines(); ++b)
          ASSERT_EQ(topology.are_neighbours(topology.rank_at(a, rail), topology.rank_at(b, rail)), a != b);
      }
    }
  });
}

TEST(Topology, EveryRankHasANeighbourOnEveryOtherMachineAndNoneOnItsOwn) {
  for_each_topology([](const std::vector<int>&, const Topology& topology) {
    for (int rank = 0; rank < topology.size(); ++rank) {
      std::vector<int> neighbours(topology.machines());
      for (int other = 0; other < topology.size(); ++other) {
        ASSERT_EQ(topology.are_neighbours(rank, other), topology.are_neighbours(other, rank)) << rank << " " << other;
        if (topology.are_neighbours(rank, other)) ++neighbours[topology.machine_of(other)];
      }
      for (int machine = 0; machine < topology.machines(); ++machine) {
        const bool own = machine == topology.machine_of(rank);
        ASSERT_EQ(neighbours[machine] == 0, own) << "rank " << rank << ", machine " << machine;
        // The ranks of a larger machine spread over those of a smaller one.
        const int size = topology.size(machine), mine = topology.size(topology.machine_of(rank));
        ASSERT_LE(neighbours[machine], (size + mine - 1) / mine) << "rank " << rank << ", machine " << machine;
      }
    }
  });
}

TEST(Topology, IsTheSameWhateverTheMachinesAreCalled) {
  for_each_topology([](const std::vector<int>& machine_of, const Topology& topology) {
    std::vector<int> renamed(machine_of);
    for (int& machine : renamed) machine = kMachines - 1 - machine;
    const Topology other(members_on(renamed));
    for (int rank = 0; rank < topology.size(); ++rank) {
      ASSERT_EQ(other.machine_of(rank), topology.machine_of(rank));
      ASSERT_EQ(other.index_of(rank), topology.index_of(rank));
    }
  });
}

TEST(Topology, ErrorsNameRanksWithTheirHosts) {
  const Topology topology(members_on({0, 1, 1, 0, 2}));
  EXPECT_EQ(ranks_with_hosts(topology, Roster(), {1, 2, 4}), "rank(s) 1, 2 (on node1), 4 (on node2)");
  EXPECT_EQ(ranks_with_hosts(topology, Roster(), {0, 1, 3}), "rank(s) 0 (on node0), 1 (on node1), 3 (on node0)");
  EXPECT_EQ(ranks_with_hosts(topology, Roster({10, 11, 12, 13, 14}), {3}), "rank(s) 13 (on node0) of the world");
}

TEST(Topology, SaysWhoSharesMemoryAndWhyOthersDoNot) {
  const Reach one = describe_reach(Topology(members_on({0, 0, 0})), Roster());
  EXPECT_EQ(one.text, "3 rank(s) share memory (host node0)");
  EXPECT_EQ(one.reason, "");
  const Reach two = describe_reach(Topology(members_on({0, 1, 0})), Roster());
  EXPECT_EQ(two.text,
            "3 ranks in 2 places: ranks of one place share memory, places are connected by the network: rank(s) 0, 2 "
            "(on node0); rank(s) 1 (on node1)");
  EXPECT_EQ(two.reason, "") << "machines in name only";
  std::vector<Member> containers = members_on({0, 1, 2});
  const std::string boot = "01234567-89ab-cdef-0123-456789abcdef";
  containers[1].machine = boot + ":7:0";
  containers[2].machine = boot + ":8:0";
  const Reach reach = describe_reach(Topology(containers), Roster());
  EXPECT_TRUE(reach.reason.starts_with(
      "rank 1 and rank 2 do not share memory, but use the network: they have different networks"))
      << reach.reason;
  std::vector<int> many;
  for (int machine = 0; machine < 10; ++machine) many.push_back(machine);
  EXPECT_TRUE(describe_reach(Topology(members_on(many)), Roster()).text.ends_with("; and 2 more"));
}

}  // namespace
}  // namespace lockstep::comm
