#include "membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/host.h"
#include "lockstep/base/environment.h"
#include "net/network_interface.h"
#include "store/membership/joined_twice.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

Result<std::string> machine_identity() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string boot, boot_id());
  struct stat network {};
  (void)stat("/proc/self/ns/net", &network);
  return fmt::format("{}:{}:{}", boot, network.st_ino, geteuid());
}

// One line for each member, so that ranks can append to one key.
std::string to_line(const Member& member) {
  const auto word = [](std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c <= ' '; }, '_');
    return text;
  };
  return fmt::format("{} {} {} {} {} {}\n", member.rank, member.world, member.pid, word(member.machine),
                     word(member.host), fmt::join(member.addresses, " "));
}

constexpr std::string_view kRefusal = "refused ";  // stands in place of the members

Result<std::vector<Member>> parse(const std::string& lines, const std::string& group) {
  if (lines.starts_with(kRefusal)) return status_from(std::string_view(lines).substr(kRefusal.size()));
  std::vector<Member> members;
  std::istringstream input(lines);
  for (std::string line; std::getline(input, line);) {
    Member member;
    std::istringstream words(line);
    if (!(words >> member.rank >> member.world >> member.pid >> member.machine >> member.host)) {
      return Status(ErrorCode::kCorrupt,
                    fmt::format("group '{}': expected 'rank world pid machine host addresses' in the store, found '{}'",
                                group, line));
    }
    for (std::string address; words >> address;) member.addresses.push_back(address);
    members.push_back(std::move(member));
  }
  return members;
}

// Whether these members, perhaps not all yet, can be one group.
Status check(const std::vector<Member>& members, const GroupNames& names) {
  std::map<int, const Member*> by_rank;
  // A rank of another job may have any number.
  const auto name = [&](const Member& member) {
    return names.ranks.has(member.rank) ? names.ranks.name(member.rank) : fmt::format("rank {}", member.rank);
  };
  const Member& first = members.front();
  for (const Member& member : members) {
    if (member.world != first.world) {
      return {ErrorCode::kMismatch,
              fmt::format("group '{}': {} (host {}, pid {}) expects a world of {}, {} (host {}, pid {}) of {}",
                          names.group, name(first), first.host, first.pid, first.world, name(member), member.host,
                          member.pid, member.world)};
    }
    if (member.rank < 0 || member.rank >= member.world) {
      return {ErrorCode::kCorrupt,
              fmt::format("group '{}': the store names rank {} (host {}, pid {}), which a world of "
                          "{} does not have",
                          names.group, member.rank, member.host, member.pid, member.world)};
    }
    const auto [other, is_new] = by_rank.emplace(member.rank, &member);
    if (!is_new) {
      return joined_twice(name(member), {other->second->pid, other->second->host}, {member.pid, member.host})
          .with_context(fmt::format("group '{}'", names.group));
    }
  }
  return {};
}

Status missing(const std::vector<Member>& members, const GroupNames& names, int world) {
  std::vector<bool> here(world);
  for (const Member& member : members) {
    if (member.rank >= 0 && member.rank < world) here[member.rank] = true;
  }
  std::string ranks;
  for (int rank = 0; rank < world; ++rank) {
    if (!here[rank]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", names.ranks.number(rank));
  }
  return {ErrorCode::kTimeout,
          fmt::format("group '{}': rank(s) {}{} did not join", names.group, ranks, names.ranks.suffix())};
}

std::string members_so_far_key(const std::string& group) {
  return fmt::format("lockstep/{}/members_so_far", group);
}
std::string members_key(const std::string& group) {
  return fmt::format("lockstep/{}/members", group);
}

}  // namespace

std::vector<std::string> membership_keys(const std::string& group) {
  return {members_so_far_key(group), members_key(group)};
}

Result<std::string> machine_of_this_process() {
  const std::string machine = Environment::of_process().get("LOCKSTEP_MACHINE").value_or("");
  if (!machine.empty()) return machine;
  return machine_identity();
}

Result<Member> describe_this_process(int rank, int world, const std::string& machine_override) {
  Member me{rank, world, static_cast<int>(getpid()), machine_override, host_name(), {}};
  if (me.machine.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(me.machine, machine_of_this_process());
  }
  if (auto addresses = addresses_of_machine(); addresses.ok()) me.addresses = std::move(addresses).value();
  return me;
}

Result<std::vector<Member>> exchange_members(Store& store, const GroupNames& names, const Member& me,
                                             Deadline deadline) {
  const std::string& group = names.group;
  const std::string so_far = members_so_far_key(group);
  const std::string complete = members_key(group);
  LOCKSTEP_RETURN_IF_ERROR(store.append(so_far, to_line(me)));
  LOCKSTEP_ASSIGN_OR_RETURN(Bytes lines, store.get(so_far, deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Member> members, parse(lines, group));
  // The rank that completes the list, or sees that it is wrong, publishes it for all.
  Status status = check(members, names);
  if (status.ok() && static_cast<int>(members.size()) < me.world) {
    auto published = store.get(complete, deadline);
    if (!published.ok()) {
      if (published.status().code() != ErrorCode::kTimeout) return published.status();
      LOCKSTEP_ASSIGN_OR_RETURN(lines, store.get(so_far, Deadline::after(std::chrono::seconds(1))));
      LOCKSTEP_ASSIGN_OR_RETURN(members, parse(lines, group));
      return missing(members, names, me.world);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(members, parse(published.value(), group));
    status = check(members, names);
  } else {
    LOCKSTEP_RETURN_IF_ERROR(store.set(complete, lines));
  }
  if (!status.ok()) return status;
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.rank < b.rank; });
  return members;
}

void refuse_membership(Store& store, const std::string& group, const Status& why) {
  (void)store.set(members_key(group), std::string(kRefusal) + to_text(why));
}

}  // namespace lockstep::comm
