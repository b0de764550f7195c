// The world, once its ranks have met.
#include <algorithm>
#include <numeric>

#include "c10d/world/world_state.h"

namespace lockstep {
namespace {

// For a rank whose environment does not describe its world: works it out from the records of all ranks.
launch::World world_among(const std::vector<comm::Member>& members, int rank) {
  std::vector<std::string> nodes;
  launch::World world;
  world.local_rank = world.local_world_size = 0;
  for (const comm::Member& member : members) {
    if (std::find(nodes.begin(), nodes.end(), member.machine) == nodes.end()) nodes.push_back(member.machine);
    if (member.machine != members[rank].machine) continue;
    ++world.local_world_size;
    if (member.rank < rank) ++world.local_rank;
  }
  world.rank = rank;
  world.world_size = static_cast<int>(members.size());
  world.node_rank = static_cast<int>(std::find(nodes.begin(), nodes.end(), members[rank].machine) - nodes.begin());
  world.num_nodes = static_cast<int>(nodes.size());
  world.source = "process group";
  world.source_kind = launch::WorldSource::kProcessGroup;
  world.local_rank_known = true;
  return world;
}

}  // namespace

void open_world(const WorldPlan& plan, const comm::Rendezvous& met, std::optional<launch::World> place,
                Deadline deadline) {
  if (!place) place = world_among(met.members, met.rank);
  WorldState::Members members{met.rank, std::vector<int>(met.world_size), plan.name};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  const BackendRequest request{met.store,         members.name,        met.rank,
                               members.ranks,     met.members,         deadline.remaining_ms(),
                               place->local_rank, plan.backend_options};
  const auto made = make_backends(plan.backends, request);
  for (const DeviceBackend& one : made) one.backend->setTimeout(plan.timeout);
  WorldState::Facts facts{met.store, met.rank, met.world_size, *place, nullptr, plan.timeout, plan.backends};
  facts.members = std::make_shared<const std::vector<comm::Member>>(met.members);
  facts.device = choose_device(plan.backends, place->local_rank);
  facts.backend_options = plan.backend_options;
  facts.job_key = plan.job_key;
  facts.store_rank = plan.store_rank;
  WorldState::of_process().open(make_handle(members, met.store, made), members, facts, met);
}

}  // namespace lockstep
