#include "store/membership/exchange_members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/host.h"
#include "lockstep/base/environment.h"
#include "store/membership/machine.h"
#include "store/membership/meeting.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

using Members = std::vector<Member>;

constexpr std::size_t kListed = 32;  // ranks spelled out in a message

std::string so_far_key(const std::string& prefix) {
  return prefix + "/members_so_far";
}
std::string outcome_key(const std::string& prefix) {
  return prefix + "/members";
}

Result<std::string> machine_of_this_process() {
  std::string machine = Environment::of_process().get("LOCKSTEP_MACHINE").value_or("");
  if (!machine.empty()) return machine;
  LOCKSTEP_ASSIGN_OR_RETURN(const MachineFacts facts, machine_facts());
  static const Result<std::string>& own = *new Result<std::string>(random_socket_name("process"));
  LOCKSTEP_RETURN_IF_ERROR(own.status());
  return machine_word(facts, own.value());
}

// One line for each record, so that ranks can append to one key.
std::string to_line(const Member& member) {
  const auto word = [](std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c <= ' '; }, '_');
    return text;
  };
  return fmt::format("{} {} {} {} {} {}\n", member.rank, member.group_size, member.pid, word(member.machine),
                     word(member.host), fmt::join(member.addresses, " "));
}

Result<Members> parse(const std::string& lines) {
  Members members;
  std::istringstream input(lines);
  for (std::string line; std::getline(input, line);) {
    Member member;
    std::istringstream words(line);
    if (!(words >> member.rank >> member.group_size >> member.pid >> member.machine >> member.host)) {
      return Status(ErrorCode::kCorrupt,
                    fmt::format("expected 'rank size pid machine host addresses' in the store, found '{}'", line));
    }
    for (std::string address; words >> address;) member.addresses.push_back(address);
    members.push_back(std::move(member));
  }
  return members;
}

// A rank of another job may have any number.
std::string name(int rank, const Roster& roster) {
  return roster.has(rank) ? roster.name(rank) : fmt::format("rank {}", rank);
}

std::string describe(const Member& member, const Roster& roster) {
  return fmt::format("{} (host {}, pid {})", name(member.rank, roster), member.host, member.pid);
}

// Whether these members, perhaps not all yet, can be one group.
Status check(const Members& members, const Roster& roster) {
  std::map<int, const Member*> by_rank;
  const Member& first = members.front();
  for (const Member& member : members) {
    if (member.group_size != first.group_size) {
      return {ErrorCode::kMismatch,
              fmt::format("the ranks disagree about the group size: {} says {}, {} says {}. Give all the same (for the "
                          "world: WORLD_SIZE)",
                          describe(first, roster), first.group_size, describe(member, roster), member.group_size)};
    }
    if (member.rank < 0 || member.rank >= member.group_size) {
      return {ErrorCode::kMismatch, fmt::format("{} is outside the group of {}: ranks go from 0 to {}",
                                                describe(member, roster), member.group_size, member.group_size - 1)};
    }
    const auto [other, is_new] = by_rank.emplace(member.rank, &member);
    if (!is_new) {
      return joined_twice(name(member.rank, roster), {other->second->pid, other->second->host},
                          {member.pid, member.host});
    }
  }
  return {};
}

std::string cut_list(const std::vector<std::string>& items) {
  if (items.empty()) return "none";
  const std::size_t listed = std::min(items.size(), kListed);
  const std::string text = fmt::format("{}", fmt::join(items.begin(), items.begin() + listed, ", "));
  return items.size() > kListed ? fmt::format("{} and {} more", text, items.size() - kListed) : text;
}

Status missing(const Members& members, const Roster& roster, int group_size, std::chrono::duration<double> spent) {
  std::vector<std::string> joined(group_size);
  for (const Member& member : members) {
    if (member.rank >= 0 && member.rank < group_size) joined[member.rank] = describe(member, roster);
  }
  std::vector<std::string> absent;
  for (int rank = 0; rank < group_size; ++rank) {
    const int number = roster.has(rank) ? roster.number(rank) : rank;
    if (joined[rank].empty()) absent.push_back(std::to_string(number));
  }
  std::erase(joined, "");
  return {ErrorCode::kTimeout,
          fmt::format("only {} of {} ranks joined within {:.1f} s. Joined: {}. Missing: rank {}{}. Look for what "
                      "stopped the missing ranks, or raise the timeout if they start late",
                      joined.size(), group_size, spent.count(), cut_list(joined), cut_list(absent), roster.suffix())};
}

// The keys hold as many lines as ranks. Lines that cannot be read are an error of the check.
Meeting meeting_of(const std::string& prefix, const Roster& roster, int group_size) {
  const auto check_lines = [roster](const std::string& lines) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const Members members, parse(lines));
    return check(members, roster);
  };
  const auto missing_from = [roster, group_size](const std::string& lines, std::chrono::duration<double> spent) {
    const auto members = parse(lines);
    return members.ok() ? missing(members.value(), roster, group_size, spent) : members.status();
  };
  return {so_far_key(prefix), outcome_key(prefix), group_size, check_lines, missing_from};
}

}  // namespace

std::vector<std::string> membership_keys(const std::string& prefix) {
  return {so_far_key(prefix), outcome_key(prefix)};
}

Result<Member> describe_this_process(int rank, int group_size, const std::string& machine) {
  Member me{rank, group_size, static_cast<int>(getpid()), machine, host_name(), {}};
  if (me.machine.empty()) {
    auto found = machine_of_this_process();
    if (!found.ok()) return found.status().with_context(describe(me, Roster()));
    me.machine = std::move(found).value();
  }
  if (auto addresses = addresses_of_machine(); addresses.ok()) me.addresses = std::move(addresses).value();
  return me;
}

Result<Members> exchange_members(Store& store, const std::string& prefix, const Roster& roster,
                                 const Result<Member>& me, Deadline deadline) {
  if (!me.ok()) {
    stay_away(store, meeting_of(prefix, roster, /*group_size=*/0), me.status());
    return me.status();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string lines, meet(store, meeting_of(prefix, roster, me.value().group_size),
                                                          to_line(me.value()), deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(Members members, parse(lines));
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.rank < b.rank; });
  return members;
}

namespace {

std::string describe(const Claimant& claimant) {
  return claimant.pid == 0 ? "another process" : fmt::format("pid {} on host {}", claimant.pid, claimant.host);
}

}  // namespace

Status joined_twice(std::string_view rank, const Claimant& first, const Claimant& second) {
  return {ErrorCode::kMismatch,
          fmt::format("{} joined twice, as {} and as {}. Give every process its own RANK; if these are two jobs, give "
                      "each its own address",
                      rank, describe(first), describe(second))};
}

}  // namespace lockstep::comm
