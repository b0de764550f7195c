#include "lockstep/data/share.h"

#include <fmt/format.h>

#include "lockstep/data/errors.h"
#include "lockstep/launch/world.h"

namespace lockstep::data {
namespace {

Share share_in(const launch::World& world, std::string source) {
  return {world.rank, world.world_size, world.local_rank, world.local_world_size, world.num_nodes, std::move(source)};
}

// Groups that this process is not in have no name, nor have those that a program made from LibTorch's classes alone.
std::string describe(const c10d::ProcessGroup& group) {
  try {
    return fmt::format("group '{}'", group.getGroupName());
  } catch (const c10::Error&) {
    return "the group that was given";
  }
}

}  // namespace

Share share_of_process() {
  if (const std::optional<launch::World> joined = launch::joined_world()) {
    return share_in(*joined, "of the process group");
  }
  return share_from(Environment::of_process());
}

Share share_in_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  Share share = share_of_process();
  if (group == nullptr) return share;
  share.rank = group->getRank();
  share.world_size = group->getSize();
  share.source = "of " + describe(*group);
  if (share.rank >= 0) return share;
  throw DataError(
      ErrorCode::kInvalidArgument,
      fmt::format("this process is no member of {}, so it has no share of the data there; give a group that "
                  "it is in, or none for the share of all ranks",
                  describe(*group)));
}

Share share_from(const Environment& environment) {
  const launch::World world = value_or_throw(launch::resolve_world({}, environment));
  const bool alone = world.source_kind == launch::WorldSource::kNotDistributed;
  return share_in(world, alone ? "no process group" : "of " + world.source);
}

}  // namespace lockstep::data
