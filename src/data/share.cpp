#include "lockstep/data/share.h"

#include "lockstep/data/errors.h"
#include "lockstep/launch/world.h"

namespace lockstep::data {
namespace {

Share share_in(const launch::World& world) {
  return {world.rank, world.world_size, world.local_rank, world.local_world_size, world.num_nodes};
}

}  // namespace

Share share_of_process() {
  if (const std::optional<launch::World> joined = launch::joined_world()) return share_in(*joined);
  return share_from(Environment::of_process());
}

Share share_from(const Environment& environment) {
  const Result<launch::World> found = launch::resolve_world({}, environment);
  if (!found.ok()) throw DataError(found.status().code(), found.status().message());
  return share_in(found.value());
}

}  // namespace lockstep::data
