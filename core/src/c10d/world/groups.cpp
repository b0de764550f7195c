// Groups of ranks, and translation between group ranks and ranks of the world.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/call_place.h"
#include "c10d/backend/group_errors.h"
#include "c10d/world/target.h"
#include "c10d/world/world_state.h"
#include "engine/core/failure.h"
#include "engine/core/group_registry.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/group_backend.h"
#include "lockstep/store/prefix_store.h"
#include "store/membership/same_choice.h"

namespace lockstep {
namespace {

ProcessGroup group_or_default(const ProcessGroup& group, const char* what) {
  const WorldState& world = WorldState::of_process();
  return group != nullptr && world.is_open() ? group : world.default_group(what);
}

// The records of these ranks of the world, as members of a group of theirs.
std::vector<comm::Member> records_of(const std::vector<int>& ranks, const std::vector<comm::Member>& world) {
  std::vector<comm::Member> records;
  for (const int rank : ranks) {
    comm::Member& member = records.emplace_back(world[rank]);
    member.rank = static_cast<int>(records.size()) - 1;
    member.group_size = static_cast<int>(ranks.size());
  }
  return records;
}

// Throws for backends that are unknown or lacking, for options of other backends, and for a wrong timeout.
BackendChoice check_options(const WorldState::Facts& facts, const GroupOptions& options, const char* caller) {
  check_timeout(options.timeout, caller);
  check_group_name(options.name, caller);
  BackendChoice choice = options.backend.empty() ? facts.backends : parse_backends(options.backend, caller);
  check_backend_options(choice, options.backend_options, caller);
  // The world's own backend holds the communicator for the groups.
  if (facts.of_communicator && !facts.backends.has(BackendName::kMpi)) check_mpi_of_program(choice, {}, caller);
  return choice;
}

// "new_group at src/train.cpp:41".
std::string with_place(const char* caller) {
  return caller + describe_place(current_call_place());
}

// Members with different backends would wait for one another, each in its own.
void check_same_backends(const WorldState::Facts& facts, const WorldState::Members& members, const std::string& key,
                         const BackendChoice& choice, bool is_default, Deadline deadline, const char* caller) {
  if (members.ranks.size() == 1) return;
  const Status same = comm::check_same_choice(*facts.store, "backends/" + key, comm::Roster(members.ranks),
                                              members.rank, static_cast<int>(members.ranks.size()),
                                              {text_of(choice), is_default, "backends"}, deadline);
  if (same.ok()) return;
  Status why = same;
  if (same.code() != ErrorCode::kMismatch) {
    why = same.with_context("while waiting for the members");
    // If this rank leaves its other groups because of this error, their members learn the cause.
    const std::string who = fmt::format("rank {} cannot join group '{}'", facts.rank, members.name);
    comm::GroupRegistry::of_process().tell({why.with_context(who), {}}, nullptr);
  }
  throw_status(why, fmt::format("{}: rank {}, group '{}'", with_place(caller), facts.rank, members.name));
}

// This rank's call is wrong: tells the members that wait for it.
void refuse_to_join(const WorldState::Facts& facts, const WorldState::Members& members, const std::string& key,
                    const std::exception& error) {
  const bool is_member = std::find(members.ranks.begin(), members.ranks.end(), facts.rank) != members.ranks.end();
  if (!is_member || members.ranks.size() == 1) return;
  comm::refuse_choice(
      *facts.store, "backends/" + key, static_cast<int>(members.ranks.size()),
      {ErrorCode::kMismatch, fmt::format("rank(s) {} could not take part: {}", facts.rank, plain_text(error))});
}

// The store of the world, in which a wait for these ranks of the world fails once one of them is gone.
std::shared_ptr<comm::Store> watched_store(const WorldState::Facts& facts, const std::vector<int>& ranks) {
  const ProcessGroup world = WorldState::of_process().default_group("new_group");
  std::shared_ptr<comm::Store> store = facts.store;
  std::set<const c10d::Backend*> seen;
  for (const at::Device& device : world->getDeviceTypes()) {
    const auto backend = world->getBackend(device.type());
    const auto* const ours = dynamic_cast<const GroupBackend*>(backend.get());
    if (ours != nullptr && seen.insert(ours).second) store = ours->watched(std::move(store), ranks);
  }
  return WorldState::of_process().watched(std::move(store), ranks);
}

// `members.ranks` has the global ranks by group rank. `key` is the prefix of the group's keys in the store. No other
// group of these members has the same.
ProcessGroup make_group(WorldState::Members members, const std::string& key, const GroupOptions& options,
                        const char* caller) {
  WorldState& world = WorldState::of_process();
  const WorldState::Facts facts = world.facts(caller);
  BackendChoice choice;
  try {
    choice = check_options(facts, options, caller);
  } catch (const std::exception& error) {
    refuse_to_join(facts, members, key, error);
    throw;
  }
  const auto found = std::find(members.ranks.begin(), members.ranks.end(), facts.rank);
  std::vector<DeviceBackend> backends;
  if (found != members.ranks.end()) {
    members.rank = static_cast<int>(found - members.ranks.begin());
    const auto timeout = options.timeout > std::chrono::milliseconds::zero() ? options.timeout : facts.timeout;
    const Deadline deadline = Deadline::after(timeout);
    try {
      WorldState::Facts watching = facts;
      watching.store = watched_store(facts, members.ranks);
      check_same_backends(watching, members, key, choice, options.backend.empty(), deadline, caller);
      // Joining gets the time that is left. Later operations get the whole timeout.
      backends =
          make_backends(choice, {std::make_shared<comm::PrefixStore>("groups/" + key, watching.store), members.name,
                                 members.rank, members.ranks, records_of(members.ranks, *facts.members),
                                 deadline.remaining_ms(), facts.place.local_rank, options.backend_options});
    } catch (const std::exception& error) {
      world.check_store_loss(error,
                             fmt::format("{}: rank {}, group '{}'", with_place(caller), facts.rank, members.name));
      throw;
    }
    for (const DeviceBackend& one : backends) one.backend->setTimeout(timeout);
  }
  ProcessGroup group = make_handle(members, facts.store, backends);
  world.add(group, std::move(members));
  return group;
}

void check_members(std::vector<int> ranks, int world_size, const char* caller) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}: no ranks were given", caller));
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    const int wrong = ranks.front() < 0 ? ranks.front() : ranks.back();
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("{}: rank {} is not in the world, 0 to {}", caller, wrong, world_size - 1));
  }
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}: rank {} is there twice", caller, *twice));
  }
}

// Every list is right by itself, and no rank is in two.
void check_lists(const std::vector<std::vector<int>>& lists, int world_size, const char* caller) {
  if (lists.empty()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}: no lists of ranks were given", caller));
  }
  std::map<int, std::size_t> list_of;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    check_members(lists[i], world_size, caller);
    for (const int rank : lists[i]) {
      const auto [found, is_new] = list_of.emplace(rank, i);
      if (is_new) continue;
      throw ArgumentError(ErrorCode::kInvalidArgument,
                          fmt::format("{}: rank {} is in two groups, {{{}}} and {{{}}}", caller, rank,
                                      fmt::join(lists[found->second], ","), fmt::join(lists[i], ",")));
    }
  }
}

}  // namespace

ProcessGroup default_group() {
  return WorldState::of_process().default_group("default_group");
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
  const WorldState::Members members = WorldState::of_process().members(group_or_default(group, "get_global_rank"));
  if (group_rank < 0 || group_rank >= static_cast<int>(members.ranks.size())) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("group rank {} is not in group '{}', 0 to {}",
                                                                 group_rank, members.name, members.ranks.size() - 1));
  }
  return members.ranks[group_rank];
}

std::vector<int> get_process_group_ranks(const ProcessGroup& group) {
  return WorldState::of_process().members(group_or_default(group, "get_process_group_ranks")).ranks;
}

ProcessGroup new_group(std::span<const int> ranks, const GroupOptions& options, CallSite site) {
  const CallScope scope(site);
  WorldState& world = WorldState::of_process();
  WorldState::Members members;
  members.ranks.assign(ranks.begin(), ranks.end());
  const WorldState::Facts facts = world.facts("new_group");
  check_members(members.ranks, facts.world_size, "new_group");
  if (options.sort_ranks) std::sort(members.ranks.begin(), members.ranks.end());
  // Every member counts the groups of exactly these members, so all have the same number without communication.
  const std::string text = fmt::format("group{{{}}}", ranks_text(members.ranks));
  const std::string key = fmt::format("{}#{}", text, world.count(text));
  members.name = options.name.empty() ? text : options.name;
  return make_group(std::move(members), key, options, "new_group");
}

ProcessGroup new_group(std::initializer_list<int> ranks, const GroupOptions& options, CallSite site) {
  return new_group(std::span<const int>(ranks.begin(), ranks.size()), options, site);
}

ProcessGroup new_group(const GroupOptions& options, CallSite site) {
  return new_group(get_process_group_ranks(), options, site);
}

ProcessGroup split_group(int color, int key, const ProcessGroup& parent, const GroupOptions& options, CallSite site) {
  const CallScope scope(site);
  const ProcessGroup whole = group_or_default(parent, "split_group");
  WorldState& world = WorldState::of_process();
  const WorldState::Members of_parent = world.members(whole);
  const auto size = static_cast<int64_t>(of_parent.ranks.size());
  const at::Tensor all = gather_numbers(whole, {color, key}, "split_group");

  std::vector<std::tuple<int64_t, int64_t>> order;  // (key, rank in the parent)
  const auto table = all.accessor<int64_t, 2>();
  for (int64_t rank = 0; rank < size; ++rank) {
    if (color >= 0 && table[rank][0] == color) order.emplace_back(table[rank][1], rank);
  }
  std::sort(order.begin(), order.end());
  WorldState::Members members;
  for (const auto& [member_key, rank] : order) members.ranks.push_back(of_parent.ranks[rank]);
  const std::string parent_text = fmt::format("{}{{{}}}", of_parent.name, ranks_text(of_parent.ranks));
  const std::string text = fmt::format("{}/split{}", parent_text, world.count("split of " + parent_text));
  members.name = options.name.empty() ? fmt::format("{}/color{}", of_parent.name, color) : options.name;
  return make_group(std::move(members), fmt::format("{}/{}", text, color), options, "split_group");
}

ProcessGroup new_subgroups(int group_size, const GroupOptions& options, const ProcessGroup& parent, CallSite site) {
  const std::vector<int> ranks = WorldState::of_process().members(group_or_default(parent, "new_subgroups")).ranks;
  if (group_size < 1 || ranks.size() % static_cast<std::size_t>(group_size) != 0) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("new_subgroups: groups of {} ranks do not divide {} of {}", group_size,
                                    parent == nullptr ? "a world" : "a group", ranks.size()));
  }
  std::vector<std::vector<int>> lists;
  for (auto first = ranks.begin(); first != ranks.end(); first += group_size) {
    lists.emplace_back(first, first + group_size);
  }
  return new_subgroups_by_enumeration(lists, options, site);
}

ProcessGroup new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup,
                                          const GroupOptions& options, CallSite site) {
  constexpr const char* kCaller = "new_subgroups_by_enumeration";
  const WorldState::Facts facts = WorldState::of_process().facts(kCaller);
  check_lists(ranks_per_subgroup, facts.world_size, kCaller);
  for (const std::vector<int>& ranks : ranks_per_subgroup) {
    if (std::find(ranks.begin(), ranks.end(), facts.rank) != ranks.end()) return new_group(ranks, options, site);
  }
  return make_group({-1, {}, "no group"}, "none", options, kCaller);
}

}  // namespace lockstep
