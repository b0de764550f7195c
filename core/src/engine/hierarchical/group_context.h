// GroupContext: what every part of a HierarchicalGroup knows of its group. It does not change while the group exists.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/core/topology.h"
#include "lockstep/shm/shared_arena.h"
#include "net/transport.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

struct GroupContext {
  const Topology& topology;
  int rank;
  Transport& transport;
  std::shared_ptr<SharedArena> arena;
  GroupNames names;
  std::string token;      // every active message of the group begins with it
  std::uint64_t tag_key;  // mixed into tags: who does not know the group's token cannot guess them

  int machine() const { return topology.machine_of(rank); }
  int index() const { return topology.index_of(rank); }
  int size() const { return topology.size(); }
  std::span<const int> local_ranks() const { return topology.ranks(machine()); }
  bool is_alone() const { return local_ranks().size() == 1; }  // on its machine
  bool is_local(int other) const { return topology.machine_of(other) == machine(); }
  // "rank 2 of the world": how errors name this rank.
  std::string me() const { return names.ranks.name(rank); }
};

}  // namespace lockstep::comm
