#include "launch/job/workers.h"

#include <numeric>

namespace lockstep::launch {

void Workers::add_to(std::vector<pollfd>& polled) const {
  for (const Group& group : groups_) {
    if (group.tree.running() > 0) polled.push_back({group.tree.fd(), POLLIN, 0});
  }
}

int Workers::running() const {
  return std::accumulate(groups_.begin(), groups_.end(), 0,
                         [](int sum, const Group& group) { return sum + group.tree.running(); });
}

pid_t Workers::pid(int local_rank) const {
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (group->newcomer == local_rank) return group->tree.pids().front();
  }
  return groups_.front().tree.pids()[static_cast<std::size_t>(local_rank)];
}

Result<std::optional<Exit>> Workers::next_exit() {
  for (Group& group : groups_) {
    if (group.tree.running() == 0) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<Exit> exit, group.tree.next_exit());
    if (!exit) continue;
    exit->index = group.newcomer.value_or(exit->index);
    return exit;
  }
  return std::optional<Exit>();
}

Status Workers::signal(int number, std::optional<int> local_rank) {
  Status first;
  for (Group& group : groups_) {
    if (group.tree.running() == 0) continue;
    const bool is_meant = !local_rank || !group.newcomer || *group.newcomer == *local_rank;
    if (!is_meant) continue;
    const Status sent = group.tree.signal(number, group.newcomer && local_rank ? 0 : local_rank);
    if (first.ok()) first = sent;
  }
  return first;
}

Status Workers::end(std::chrono::milliseconds limit) {
  Status first;
  for (Group& group : groups_) {
    const Status ended = group.tree.end(limit);
    if (first.ok()) first = ended;
  }
  return first;
}

}  // namespace lockstep::launch
