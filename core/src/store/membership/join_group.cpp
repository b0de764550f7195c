#include "store/membership/join_group.h"

#include <fmt/format.h>

#include "store/membership/exchange_members.h"

namespace lockstep::comm {
namespace {

constexpr auto kLeaveTime = std::chrono::seconds(1);

std::string joins_key(const std::string& base, int rank) {
  return fmt::format("{}/joins/{}", base, rank);
}
std::string round_prefix(const std::string& base, std::int64_t round) {
  return fmt::format("{}/{}", base, round);
}
std::string left_key(const std::string& prefix, int rank) {
  return fmt::format("{}/left/{}", prefix, rank);
}

// Whether another process has joined as `rank` in an earlier round and is still there.
Result<bool> is_taken(Store& store, const std::string& base, std::int64_t earlier, int rank) {
  if (earlier == 0) return false;
  const std::string left = left_key(round_prefix(base, earlier), rank);
  LOCKSTEP_ASSIGN_OR_RETURN(const bool has_left, store.check({&left, 1}));
  return !has_left;
}

}  // namespace

Result<Joined> join_group(Store& store, const std::string& base, int rank, int group_size, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::int64_t round, store.add(joins_key(base, rank), 1));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool taken, is_taken(store, base, round - 1, rank));
  if (taken) {
    // Then this process goes to the other one's round: all that still wait there learn that the rank is there twice.
    LOCKSTEP_ASSIGN_OR_RETURN(round, store.add(joins_key(base, rank), -1));
  }
  const std::string prefix = round_prefix(base, round);
  auto members = exchange_members(store, prefix, Roster(), describe_this_process(rank, group_size), deadline);
  if (members.ok()) return Joined{prefix, std::move(members).value()};
  // Best effort: the store may be what failed.
  if (!taken) static_cast<void>(leave_group(store, prefix, rank, Deadline::after(kLeaveTime)));
  return members.status();
}

Result<std::string> refuse_group(Store& store, const std::string& base, int rank, const Status& why) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t round, store.add(joins_key(base, rank), 1));
  const std::string prefix = round_prefix(base, round);
  static_cast<void>(exchange_members(store, prefix, Roster(), why, Deadline::after(kLeaveTime)));
  LOCKSTEP_RETURN_IF_ERROR(leave_group(store, prefix, rank, Deadline::after(kLeaveTime)));
  return prefix;
}

Result<std::string> round_of(Store& store, const std::string& base, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t round, store.add(joins_key(base, rank), 0));
  return round_prefix(base, round);
}

Status leave_group(Store& store, const std::string& prefix, int rank, Deadline deadline) {
  return store.set(left_key(prefix, rank), "1", deadline);
}

Result<bool> have_all_left(Store& store, const std::string& prefix, int group_size) {
  std::vector<std::string> keys;
  keys.reserve(group_size);
  for (int rank = 0; rank < group_size; ++rank) keys.push_back(left_key(prefix, rank));
  return store.check(keys);
}

Result<bool> has_joined(Store& store, const std::string& base, int rank) {
  const std::string key = joins_key(base, rank);
  return store.check({&key, 1});
}

}  // namespace lockstep::comm
