#include "topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "store/membership/machine.h"

namespace lockstep::comm {

Topology::Topology(const std::vector<Member>& members) : members_(members) {
  std::map<std::string, int> known;
  for (const Member& member : members) {
    const auto [entry, is_new] = known.emplace(member.machine, static_cast<int>(ranks_.size()));
    if (is_new) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[entry->second];
    machine_of_.push_back(entry->second);
    index_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(member.rank);
  }
  rails_ = size(0);
  for (int machine = 1; machine < machines(); ++machine) rails_ = std::min(rails_, size(machine));
}

bool Topology::are_neighbours(int a, int b) const {
  const int on = machine_of_[a], other = machine_of_[b];
  if (on == other) return false;
  const int common = std::min(size(on), size(other));
  return index_of_[a] % common == index_of_[b] % common;
}

std::string ranks_with_hosts(const Topology& topology, const Roster& roster, const std::vector<int>& ranks) {
  std::string text = "rank(s) ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool last_of_machine =
        i + 1 == ranks.size() || topology.machine_of(ranks[i + 1]) != topology.machine_of(ranks[i]);
    text += fmt::format("{}{}", i == 0 ? "" : ", ", roster.number(ranks[i]));
    if (last_of_machine) text += fmt::format(" (on {})", topology.member(ranks[i]).host);
  }
  return text + roster.suffix();
}

Reach describe_reach(const Topology& topology, const Roster& roster) {
  constexpr int kListed = 8;
  if (topology.machines() == 1)
    return {fmt::format("{} rank(s) share memory (host {})", topology.size(), topology.member(0).host), {}};
  Reach reach{fmt::format("{} ranks in {} places: ranks of one place share memory, places are connected by the network",
                          topology.size(), topology.machines()),
              {}};
  for (int machine = 0; machine < std::min(topology.machines(), kListed); ++machine)
    reach.text += (machine == 0 ? ": " : "; ") + ranks_with_hosts(topology, roster, topology.ranks(machine));
  if (topology.machines() > kListed) reach.text += fmt::format("; and {} more", topology.machines() - kListed);
  for (int machine = 0; machine < topology.machines() && reach.reason.empty(); ++machine) {
    for (int other = 0; other < machine && reach.reason.empty(); ++other) {
      const int left = topology.rank_at(other, 0), right = topology.rank_at(machine, 0);
      const std::string why = why_apart(topology.member(left).machine, topology.member(right).machine);
      if (!why.empty()) {
        reach.reason = fmt::format("{} and {} do not share memory, but use the network: {}", roster.name(left),
                                   roster.name(right), why);
      }
    }
  }
  return reach;
}

}  // namespace lockstep::comm
