// LocalGroups: the two local groups in which the ranks of a machine do the local operations of a HierarchicalGroup. One
// is for the operations before an exchange, the other for those after it. So the operations of each group come in the
// same order on every rank, however long the exchanges take.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/topology.h"
#include "engine/local/local_group.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

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
