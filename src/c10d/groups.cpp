// Groups of ranks, and translation between group ranks and ranks of the world.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "c10d/target.h"
#include "c10d/world.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

ProcessGroup group_or_default(const ProcessGroup& group, const char* what) {
  ProcessGroup world = World::of_process().default_group(what);
  return group != nullptr ? group : world;
}

// The records of these ranks of the world, as members of a group of theirs.
std::vector<comm::Member> records_of(const std::vector<int>& ranks, const std::vector<comm::Member>& world) {
  std::vector<comm::Member> records;
  for (const int rank : ranks) {
    comm::Member& member = records.emplace_back(world[rank]);
    member.rank = static_cast<int>(records.size()) - 1;
    member.world_size = static_cast<int>(ranks.size());
  }
  return records;
}

// `members.ranks` is by group rank. `key` is unique among the groups of its members: the prefix of the group's keys.
ProcessGroup make_group(World::Members members, const std::string& key, std::chrono::milliseconds timeout) {
  World& world = World::of_process();
  const World::Facts facts = world.facts("new_group");
  const auto found = std::find(members.ranks.begin(), members.ranks.end(), facts.rank);
  std::vector<DeviceBackend> backends;
  if (found != members.ranks.end()) {
    members.rank = static_cast<int>(found - members.ranks.begin());
    backends =
        make_backends(facts.backends,
                      {std::make_shared<comm::PrefixStore>("groups/" + key, facts.store), members.name, members.rank,
                       members.ranks, records_of(members.ranks, *facts.members),
                       timeout > std::chrono::milliseconds::zero() ? timeout : facts.timeout, facts.place.local_rank});
  }
  ProcessGroup group = make_handle(members, facts.store, backends);
  world.add(group, std::move(members));
  return group;
}

void check_members(const std::vector<int>& sorted, int world_size) {
  if (sorted.empty()) throw ArgumentError(ErrorCode::kInvalidArgument, "new_group: no ranks were given");
  if (sorted.front() < 0 || sorted.back() >= world_size) {
    const int wrong = sorted.front() < 0 ? sorted.front() : sorted.back();
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("new_group: rank {} is not in the world, 0 to {}", wrong, world_size - 1));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("new_group: rank {} is there twice", *twice));
  }
}

}  // namespace

ProcessGroup default_group() {
  return World::of_process().default_group("default_group");
}

int get_rank(const ProcessGroup& group) {
  return group_or_default(group, "get_rank")->getRank();
}

int get_world_size(const ProcessGroup& group) {
  return group_or_default(group, "get_world_size")->getSize();
}

std::string get_backend(const ProcessGroup& group) {
  const ProcessGroup target = group_or_default(group, "get_backend");
  if (!target->hasBackends()) return "none";
  std::map<std::string, std::string> by_device;
  std::set<std::string> names;
  for (const auto& device : target->getDeviceTypes()) {
    const std::string name = target->getBackend(device.type())->getBackendName();
    by_device[c10::DeviceTypeName(device.type(), /*lower_case=*/true)] = name;
    names.insert(name);
  }
  if (names.size() == 1) return *names.begin();
  std::string text;
  for (const auto& [device, name] : by_device) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", device, name);
  return text;
}

int get_group_rank(const ProcessGroup& group, int global_rank) {
  return group_rank_of(group_or_default(group, "get_group_rank"), global_rank, "get_group_rank");
}

int get_global_rank(const ProcessGroup& group, int group_rank) {
  const World::Members members = World::of_process().members(group_or_default(group, "get_global_rank"));
  if (group_rank < 0 || group_rank >= static_cast<int>(members.ranks.size())) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("group rank {} is not in group '{}', 0 to {}",
                                                                 group_rank, members.name, members.ranks.size() - 1));
  }
  return members.ranks[group_rank];
}

std::vector<int> get_process_group_ranks(const ProcessGroup& group) {
  return World::of_process().members(group_or_default(group, "get_process_group_ranks")).ranks;
}

ProcessGroup new_group(std::span<const int> ranks, const GroupOptions& options) {
  check_timeout(options.timeout, "new_group");
  World& world = World::of_process();
  World::Members members;
  members.ranks.assign(ranks.begin(), ranks.end());
  std::sort(members.ranks.begin(), members.ranks.end());
  check_members(members.ranks, world.facts("new_group").world_size);
  // Every member counts the groups of exactly these members, so all have the same number without communication.
  const std::string text = fmt::format("group{{{}}}", ranks_text(members.ranks));
  const std::string key = fmt::format("{}#{}", text, world.count(text));
  members.name = options.name.empty() ? text : options.name;
  return make_group(std::move(members), key, options.timeout);
}

ProcessGroup new_group(std::initializer_list<int> ranks, const GroupOptions& options) {
  return new_group(std::span<const int>(ranks.begin(), ranks.size()), options);
}

ProcessGroup split_group(int color, int key, const ProcessGroup& parent, const GroupOptions& options) {
  check_timeout(options.timeout, "split_group");
  const ProcessGroup whole = group_or_default(parent, "split_group");
  World& world = World::of_process();
  const World::Members of_parent = world.members(whole);
  const auto size = static_cast<int64_t>(of_parent.ranks.size());
  const Target target = find_host_target(whole, "split_group");
  const at::Device device = target.device == c10::DeviceType::CPU ? at::Device(at::kCPU) : local_device();
  at::Tensor mine = at::tensor({static_cast<int64_t>(color), static_cast<int64_t>(key)}, at::kLong).to(device);
  at::Tensor all = at::empty({size, 2}, mine.options());
  target
      ->_allgather_base(all, mine, make_options<c10d::AllgatherOptions>(kGroupTimeout, Mode::kBlocking, "split_group"))
      ->wait();
  all = all.cpu();

  std::vector<std::tuple<int64_t, int64_t>> order;  // (key, rank in the parent)
  const auto table = all.accessor<int64_t, 2>();
  for (int64_t rank = 0; rank < size; ++rank) {
    if (color >= 0 && table[rank][0] == color) order.emplace_back(table[rank][1], rank);
  }
  std::sort(order.begin(), order.end());
  World::Members members;
  for (const auto& [member_key, rank] : order) members.ranks.push_back(of_parent.ranks[rank]);
  const std::string parent_text = fmt::format("{}{{{}}}", of_parent.name, ranks_text(of_parent.ranks));
  const std::string text = fmt::format("{}/split{}", parent_text, world.count("split of " + parent_text));
  members.name = options.name.empty() ? fmt::format("{}/color{}", of_parent.name, color) : options.name;
  return make_group(std::move(members), fmt::format("{}/{}", text, color), options.timeout);
}

ProcessGroup new_subgroups(int group_size, const GroupOptions& options) {
  const World::Facts facts = World::of_process().facts("new_subgroups");
  if (group_size < 1 || facts.world_size % group_size != 0) {
    throw ArgumentError(
        ErrorCode::kInvalidArgument,
        fmt::format("new_subgroups: groups of {} ranks do not divide a world of {}", group_size, facts.world_size));
  }
  std::vector<int> ranks;
  const int first = facts.rank / group_size * group_size;
  for (int rank = first; rank < first + group_size; ++rank) ranks.push_back(rank);
  return new_group(ranks, options);
}

}  // namespace lockstep
