#include "engine/core/group_registry.h"

#include <algorithm>
#include <utility>

#include "engine/core/failure.h"
#include "engine/core/group.h"
#include "lockstep/base/fork.h"

namespace lockstep::comm {
namespace {

// How often, and how many at a time, groups without started operations progress. A turn takes a lock that the group's
// own calls need, and a process may have hundreds of groups.
constexpr auto kIdleTurnEvery = std::chrono::milliseconds(1);
constexpr std::size_t kIdleTurns = 8;

}  // namespace

GroupRegistry& GroupRegistry::of_process() {
  static constinit OfProcess<GroupRegistry> registry;
  return registry.get();
}

void GroupRegistry::add(const std::shared_ptr<Group>& group) {
  MutexLock lock(mutex_);
  groups_.push_back({group.get(), group});
  count_.store(groups_.size(), std::memory_order_relaxed);
}

void GroupRegistry::remove(const Group& group) {
  MutexLock lock(mutex_);
  std::erase_if(groups_, [&](const Entry& entry) { return entry.address == &group; });
  next_turn_ = 0;
  count_.store(groups_.size(), std::memory_order_relaxed);
}

GroupRegistry::Others GroupRegistry::progress_others(const Group& group) {
  if (count_.load(std::memory_order_relaxed) < 2) return {};
  Others others;
  std::vector<std::shared_ptr<Group>> chosen;
  {
    if (!mutex_.try_lock()) return {.moved = false, .busy = true};  // another thread does this now
    const MutexLock lock(mutex_, std::adopt_lock);
    if (groups_.empty()) return others;
    const auto now = Clock::now();
    const std::size_t idle_turns = now - last_idle_turn_ >= kIdleTurnEvery ? std::min(kIdleTurns, groups_.size()) : 0;
    if (idle_turns > 0) last_idle_turn_ = now;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const Entry& entry = groups_[i];
      const bool busy = entry.address->busy();
      const bool has_turn = (i + groups_.size() - next_turn_) % groups_.size() < idle_turns;
      if (entry.address == &group || !(busy || has_turn)) continue;
      others.busy = others.busy || busy;
      if (auto other = entry.group.lock()) chosen.push_back(std::move(other));
    }
    next_turn_ = (next_turn_ + idle_turns) % groups_.size();
  }
  for (const auto& other : chosen) others.moved = other->try_progress() || others.moved;
  return others;
}

void GroupRegistry::tell_other_groups(Group& group) {
  const Failure failure = group.failure();
  if (failure.status.ok() || is_formed_anew(failure.status.message())) return;
  if (group.begin_telling()) tell(failure, &group);
}

void GroupRegistry::tell(const Failure& failure, const Group* from) {
  for (const auto& other : all_but(from)) other->hear(failure);
}

std::shared_ptr<const void> GroupRegistry::show_wait(const Group& group, bool in_itself, const std::string& what) {
  struct Shown {
    Shown() = default;
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;
    ~Shown() {
      for (const auto& one : in) {
        if (const auto other = one.lock()) other->show_wait("");
      }
    }
    std::vector<std::weak_ptr<Group>> in;
  };
  auto shown = std::make_shared<Shown>();
  // The groups of other ranks are here too, if ranks are threads of one process.
  for (const auto& other : all_but(in_itself ? nullptr : &group)) {
    if (other->world_rank() != group.world_rank()) continue;
    other->show_wait(what);
    shown->in.push_back(other);
  }
  return shown;
}

bool GroupRegistry::any_broken() {
  const std::vector<std::shared_ptr<Group>> all = all_but(nullptr);
  return std::any_of(all.begin(), all.end(), [](const auto& group) { return !group->health().ok(); });
}

std::vector<std::shared_ptr<Group>> GroupRegistry::all_but(const Group* group) {
  std::vector<std::shared_ptr<Group>> others;
  MutexLock lock(mutex_);
  for (const Entry& entry : groups_) {
    if (auto other = entry.address == group ? nullptr : entry.group.lock()) others.push_back(std::move(other));
  }
  return others;
}

}  // namespace lockstep::comm
