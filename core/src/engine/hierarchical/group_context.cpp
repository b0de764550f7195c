#include "group_context.h"

#include <fmt/format.h>

#include "shm/hand_over.h"

namespace lockstep::comm {
namespace {

constexpr const char* kBefore = "before";
constexpr const char* kAfter = "after";

// The name of a local group.
std::string local_name(const std::string& group, int machine, const char* what) {
  return fmt::format("{}@{}/{}", group, machine, what);
}

}  // namespace

Status LocalGroups::open(Store& store, const CommunicatorOptions& options, const Topology& topology,
                         Deadline deadline) {
  const int machine = topology.machine_of(options.rank);
  const Roster roster(options.world_ranks);
  CommunicatorOptions local;
  local.rank = topology.index_of(options.rank);
  local.group_size = topology.size(machine);
  local.timeout = options.timeout;
  for (const int rank : topology.ranks(machine)) local.world_ranks.push_back(roster.number(rank));
  local.name = local_name(options.name, machine, kBefore);
  local.arena = options.arena;
  LOCKSTEP_ASSIGN_OR_RETURN(before_, LocalGroup::create(store, local, deadline));
  local.name = local_name(options.name, machine, kAfter);
  local.arena = before_->memory().shared_arena();
  LOCKSTEP_ASSIGN_OR_RETURN(after_, LocalGroup::create(store, local, deadline));
  return {};
}

std::vector<std::string> LocalGroups::keys(const std::string& group, const Topology& topology) {
  std::vector<std::string> keys;
  for (int machine = 0; machine < topology.machines(); ++machine) {
    for (const char* what : {kBefore, kAfter}) keys.push_back(hand_over_key(local_name(group, machine, what)));
  }
  return keys;
}

Status LocalGroups::health() const {
  Status status = before_->health();
  return status.ok() ? after_->health() : status;
}

void LocalGroups::abort(ErrorCode code, const std::string& reason) const {
  for (const auto& local : {before_, after_}) {
    if (local != nullptr) local->waiting().abort(code, reason);
  }
}

void LocalGroups::hear(const Failure& failure) const {
  before_->hear(failure);
  after_->hear(failure);
}

void LocalGroups::close() const {
  before_->close();
  after_->close();
}

}  // namespace lockstep::comm
