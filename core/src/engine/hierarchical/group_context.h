// What the parts of a HierarchicalGroup share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/topology.h"
#include "engine/local/local_group.h"
#include "lockstep/shm/shared_arena.h"
#include "lockstep/store/store.h"
#include "net/transport.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

// What every part knows of its group. It does not change while the group exists.
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

// LocalGroups: the two local groups in which the ranks of a machine do the local operations of a HierarchicalGroup. One
// is for the operations before an exchange, the other for those after it. So the operations of each group come in the
// same order on every rank, however long the exchanges take.
class LocalGroups {
 public:
  // Collective over the ranks of this machine. `options` are those of the whole group.
  Status open(Store& store, const CommunicatorOptions& options, const Topology& topology, Deadline deadline);
  // The keys that open() leaves in the store, on all machines together.
  static std::vector<std::string> keys(const std::string& group, const Topology& topology);

  bool is_open() const { return after_ != nullptr; }
  LocalGroup& before() const { return *before_; }
  LocalGroup& after() const { return *after_; }

  // Why they broke; ok while both work.
  Status health() const;
  // The first reason stays, whichever rank of the machine gave it. After an open() that failed, this breaks the
  // groups that were made.
  void abort(ErrorCode code, const std::string& reason) const;
  void hear(const Failure& failure) const;
  void close() const;

 private:
  std::shared_ptr<LocalGroup> before_;
  std::shared_ptr<LocalGroup> after_;
};

}  // namespace lockstep::comm
