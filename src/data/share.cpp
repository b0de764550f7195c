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
  return share_in(value_or_throw(launch::resolve_world({}, environment)));
}

}  // namespace lockstep::data
