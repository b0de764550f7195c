// The world, once its ranks have met.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "c10d/backend/group_errors.h"
#include "c10d/world/world_state.h"
#include "lockstep/c10d/group_backend.h"
#include "lockstep/launch/newcomer.h"
#include "lockstep/store/hash_store.h"

namespace lockstep {
namespace {

// For the death of the store's rank to be seen in the world.
constexpr std::chrono::milliseconds kDeathTime{500};

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

// A newcomer of the launcher is alone at first, and takes the GPU of the worker that it replaces: the launcher replaces
// workers of one machine only, where ranks and local ranks are the same.
int number_of_device(const launch::World& place) {
  if (place.world_size != 1) return place.local_rank;
  const Result<std::optional<int>> replaced = launch::replaced_rank();
  return replaced.ok() ? replaced.value().value_or(place.local_rank) : place.local_rank;
}

}  // namespace

void open_world(const WorldPlan& plan, const comm::Rendezvous& met, std::optional<launch::World> place,
                Deadline deadline) {
  if (!place) place = world_among(met.members, met.rank);
  WorldState::Members members{met.rank, std::vector<int>(met.world_size), plan.name};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  const int device_number = number_of_device(*place);
  BackendRequest request{met.store,     members.name,        met.rank,
                         members.ranks, met.members,         deadline.remaining_ms(),
                         device_number, plan.backend_options};
  if (plan.communicator != nullptr && plan.communicator->mpi) {
    request.mpi_communicator = plan.communicator->mpi->handle;
  }
  const auto made = make_backends(plan.backends, request);
  for (const DeviceBackend& one : made) one.backend->setTimeout(plan.timeout);
  WorldState::Facts facts{met.store, met.rank, met.world_size, *place, nullptr, plan.timeout, plan.backends};
  facts.members = std::make_shared<const std::vector<comm::Member>>(met.members);
  facts.device = choose_device(plan.backends, device_number);
  facts.backend_options = plan.backend_options;
  facts.job_key = plan.job_key;
  facts.store_rank = plan.store_rank;
  facts.of_communicator = plan.communicator != nullptr;
  WorldState::of_process().open(make_handle(members, met.store, made), members, facts, met);
}

void WorldState::check_store_loss(const std::exception& error, const std::string& what) const {
  if (error_code(error) != ErrorCode::kUnavailable) return;
  const ProcessGroup world = handle();
  if (world == nullptr) return;
  const Facts known = facts_to_reconfigure("");
  const std::string probe = "left/0";
  if (known.store->check({&probe, 1}).status().code() != ErrorCode::kUnavailable) return;
  std::shared_ptr<comm::Store> ranks = std::make_shared<comm::HashStore>();
  for (const at::Device& device : world->getDeviceTypes()) {
    const auto backend = world->getBackend(device.type());
    const auto* const ours = dynamic_cast<const GroupBackend*>(backend.get());
    if (ours != nullptr) ranks = ours->watched(std::move(ranks), members(world).ranks);
  }
  const Status lost = ranks->get("the first death", Deadline::after(kDeathTime)).status();
  if (lost.code() == ErrorCode::kAborted) throw_status(lost, what);  // its rank has left to form the world anew
  std::string cause = lost.message();
  if (lost.code() == ErrorCode::kTimeout) {
    cause = known.store_rank ? fmt::format("rank {} has ended", *known.store_rank)
                             : "the process that serves the store (rank 0, or the launcher) has ended";
  }
  throw_status({ErrorCode::kPeerFailed, fmt::format("{}; with it the store was lost: {}", cause, plain_text(error))},
               what);
}

}  // namespace lockstep
