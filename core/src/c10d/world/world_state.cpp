#include "c10d/world/world_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <utility>

#include "c10d/world/engine_of.h"
#include "c10d/world/group_watch.h"
#include "c10d/world/open_meeting_place.h"
#include "engine/core/failure.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/group_backend.h"
#include "lockstep/c10d/store_adapter.h"
#include "store/membership/watched_store.h"

namespace lockstep {
namespace {

// This process's rank in the open world (-1: none is open), and the process that has it.
struct Joined {
  std::atomic<std::uint32_t> generation{0};
  std::atomic<int> rank{-1};
};
constinit Joined joined;

void remember_rank(int rank) {
  joined.generation = process_generation();
  joined.rank = rank;
}

int rank_of_parent() {
  return joined.generation == process_generation() ? -1 : joined.rank.load();
}

[[noreturn]] void throw_not_initialised(const char* what) {
  if (const int rank = rank_of_parent(); rank >= 0) {
    throw ArgumentError(
        ErrorCode::kUnsupported,
        fmt::format("{}: this process is a fork of rank {}; only the rank itself can use its groups. Fork "
                    "before init_process_group, or call it here as a rank of another world",
                    what, rank));
  }
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      fmt::format("{}: there is no process group; call init_process_group first", what));
}

void retire(const ProcessGroup& group, std::chrono::milliseconds parting_time, const Status& why = {}) {
  for (const at::Device& device : group->getDeviceTypes()) {
    if (auto* const engine = engine_of(group, device.type())) engine->retire(parting_time, why);
  }
}

// Backends of other libraries may wait for ranks that are gone when they shut down.
void abort_others(const ProcessGroup& group) {
  for (const at::Device& device : group->getDeviceTypes()) {
    const auto backend = group->getBackend(device.type());
    if (dynamic_cast<const GroupBackend*>(backend.get()) == nullptr) backend->abort();
  }
}

// Why this rank's own backends of the group broke; empty: they work.
std::string cause_in(const ProcessGroup& group) {
  for (const at::Device& device : group->getDeviceTypes()) {
    const auto backend = group->getBackend(device.type());
    const auto* const ours = dynamic_cast<const GroupBackend*>(backend.get());
    if (ours != nullptr && !ours->health().ok()) return comm::first_cause(ours->health().message());
  }
  return {};
}

// A store that hangs must not delay anybody who leaves.
constexpr std::chrono::milliseconds kLeaveTime{300};

// Leaves the store that a rank's meeting place serves, which goes with that rank: waits there for the others.
void leave_store(const WorldState::Facts& facts, std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kLookEvery{1};
  std::vector<std::string> keys;
  for (int rank = 0; rank < facts.world_size; ++rank) keys.push_back(fmt::format("left/{}", rank));
  const Status told = facts.store->set(keys[facts.rank], "1", Deadline::after(kLeaveTime));
  if (!told.ok() || facts.rank != *facts.store_rank) return;
  for (const Deadline until = Deadline::after(wait); !until.expired(); std::this_thread::sleep_for(kLookEvery)) {
    const Result<bool> all = facts.store->check(keys);
    if (!all.ok() || all.value()) return;
  }
}

struct Watchers {
  Mutex mutex;
  std::vector<void (*)(const ProcessGroup&)> functions LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed, like the world.
Watchers& watchers() {
  static Watchers& all = *new Watchers;
  return all;
}

void tell_watchers(const std::vector<ProcessGroup>& groups) {
  Watchers& all = watchers();
  std::vector<void (*)(const ProcessGroup&)> functions;
  {
    MutexLock lock(all.mutex);
    functions = all.functions;
  }
  for (const auto left : functions) {
    for (const ProcessGroup& group : groups) left(group);
  }
}

}  // namespace

void watch_groups(void (*left)(const ProcessGroup& group)) {
  Watchers& all = watchers();
  MutexLock lock(all.mutex);
  if (std::find(all.functions.begin(), all.functions.end(), left) == all.functions.end()) all.functions.push_back(left);
}

WorldState& WorldState::of_process() {
  static constinit OfProcess<WorldState> world;
  return world.get();
}

bool WorldState::is_open() const {
  MutexLock lock(mutex_);
  return default_ != nullptr;
}

void WorldState::open(const ProcessGroup& group, Members members, const Facts& facts, comm::Rendezvous rendezvous) {
  log::set_rank(facts.rank);
  remember_rank(facts.rank);
  launch::set_joined_world(facts.place);
  {
    MutexLock lock(mutex_);
    default_ = group;
    facts_ = facts;
    rendezvous_ = std::move(rendezvous);
    why_left_ = {};
    counts_.clear();
    ++worlds_;
  }
  add(group, std::move(members));
}

void WorldState::close(std::chrono::milliseconds wait) {
  std::vector<ProcessGroup> groups;
  std::vector<ProcessGroup> kept;  // freed without the lock
  std::optional<comm::Rendezvous> rendezvous;
  std::shared_ptr<comm::MeetingPlace> place;  // closed last
  Facts facts;
  {
    MutexLock lock(mutex_);
    groups = living_groups();
    kept.swap(kept_);
    for (auto& [key, entry] : groups_) entry.left = true;
    counts_.clear();
    place.swap(place_);
    handles_.clear();
    why_left_ = {};
    default_.reset();
    facts = std::exchange(facts_, {});
    remember_rank(-1);
    rendezvous.swap(rendezvous_);
  }
  launch::set_joined_world({});
  // All groups before the first wait for callbacks: a callback may wait for an operation of another group.
  for (const ProcessGroup& group : groups) retire(group, wait);
  for (const ProcessGroup& group : groups) group->shutdown();
  tell_watchers(groups);
  groups.clear();
  if (rendezvous && facts.store_rank) leave_store(facts, wait);
  // kTimeout says that others are still connected; they lose the store then.
  if (rendezvous) static_cast<void>(rendezvous->release(wait));
}

void WorldState::leave_for(const Status& why) {
  std::vector<ProcessGroup> groups;
  std::vector<ProcessGroup> kept;  // freed without the lock
  std::optional<comm::Rendezvous> rendezvous;
  {
    MutexLock lock(mutex_);
    groups = living_groups();
    kept.swap(kept_);
    for (auto& [key, entry] : groups_) entry.left = true;
    why_left_ = why;
    rendezvous.swap(rendezvous_);
  }
  for (const ProcessGroup& group : groups) retire(group, kAtOnce, why);
  for (const ProcessGroup& group : groups) {
    abort_others(group);
    group->shutdown();
  }
  tell_watchers(groups);
  if (rendezvous) static_cast<void>(rendezvous->release(kAtOnce));
}

std::shared_ptr<comm::MeetingPlace> WorldState::meeting_place(const char* what) {
  const Facts known = facts_to_reconfigure(what);
  MutexLock lock(mutex_);
  if (place_ == nullptr) place_ = open_meeting_place(*known.store, known.job_key, what);
  return place_;
}

std::vector<std::string> WorldState::handles() const {
  MutexLock lock(mutex_);
  return handles_;
}

void WorldState::set_handles(std::vector<std::string> handles) {
  MutexLock lock(mutex_);
  handles_ = std::move(handles);
}

std::vector<ProcessGroup> WorldState::living_groups() const {
  std::vector<ProcessGroup> groups;
  for (const auto& [key, entry] : groups_) {
    if (entry.left) continue;
    if (ProcessGroup group = entry.group.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

bool WorldState::has_failed() const {
  std::vector<ProcessGroup> groups;
  {
    MutexLock lock(mutex_);
    if (!why_left_.ok()) return true;
    groups = living_groups();
  }
  for (const ProcessGroup& group : groups) {
    for (const at::Device& device : group->getDeviceTypes()) {
      if (group->getBackend(device.type())->getError() != c10d::ErrorType::SUCCESS) return true;
    }
  }
  return false;
}

ProcessGroup WorldState::default_group(const char* what) const {
  MutexLock lock(mutex_);
  if (default_ == nullptr) throw_not_initialised(what);
  if (!why_left_.ok()) throw_status(why_left_, what);
  return default_;
}

ProcessGroup WorldState::handle() const {
  MutexLock lock(mutex_);
  return default_;
}

WorldState::Facts WorldState::facts(const char* what) const {
  MutexLock lock(mutex_);
  if (default_ == nullptr) throw_not_initialised(what);
  if (!why_left_.ok()) throw_status(why_left_, what);
  return facts_;
}

WorldState::Facts WorldState::facts_to_reconfigure(const char* what) const {
  MutexLock lock(mutex_);
  if (default_ == nullptr) throw_not_initialised(what);
  return facts_;
}

void WorldState::add(const ProcessGroup& group, Members members, const ProcessGroup& of) {
  MutexLock lock(mutex_);
  std::erase_if(groups_, [](const auto& item) { return item.second.group.expired(); });
  groups_.insert_or_assign(
      group.get(), Entry{c10::weak_intrusive_ptr<c10d::ProcessGroup>(group), std::move(members), of.get(), worlds_});
}

void WorldState::remove(const ProcessGroup& group, const Status& why) {
  std::vector<ProcessGroup> left = own_groups(group);
  left.push_back(group);
  if (!why.ok()) {
    for (const ProcessGroup& one : left) retire(one, kAtOnce, why);
  }
  for (const ProcessGroup& one : left) {
    if (!why.ok()) abort_others(one);
    one->shutdown();
  }
  {
    MutexLock lock(mutex_);
    for (const ProcessGroup& one : left) {
      std::erase(kept_, one);
      if (const auto found = groups_.find(one.get()); found != groups_.end()) found->second.left = true;
    }
  }
  tell_watchers({group});
}

void WorldState::keep(const ProcessGroup& own) {
  MutexLock lock(mutex_);
  if (default_ != nullptr) kept_.push_back(own);
}

bool WorldState::is_of_earlier_world(const ProcessGroup& group) const {
  MutexLock lock(mutex_);
  const auto found = groups_.find(group.get());
  return found != groups_.end() && !found->second.group.expired() && found->second.world != worlds_;
}

bool WorldState::is_own(const ProcessGroup& group) const {
  MutexLock lock(mutex_);
  const auto found = groups_.find(group.get());
  return found != groups_.end() && found->second.of != nullptr && !found->second.group.expired();
}

ProcessGroup WorldState::beside(const ProcessGroup& group) const {
  MutexLock lock(mutex_);
  const auto own = groups_.find(group.get());
  if (own == groups_.end() || own->second.of == nullptr) return group;
  const auto found = groups_.find(own->second.of);
  ProcessGroup of = found == groups_.end() ? nullptr : found->second.group.lock();
  return of != nullptr ? of : group;
}

std::vector<ProcessGroup> WorldState::own_groups(const ProcessGroup& group) const {
  std::vector<ProcessGroup> own;
  MutexLock lock(mutex_);
  for (const auto& [key, entry] : groups_) {
    if (entry.left || entry.of != group.get()) continue;
    if (ProcessGroup one = entry.group.lock()) own.push_back(std::move(one));
  }
  return own;
}

WorldState::Members WorldState::members(const ProcessGroup& group) const {
  {
    MutexLock lock(mutex_);
    const auto found = groups_.find(group.get());
    if (found != groups_.end() && !found->second.group.expired()) return found->second.members;
  }
  Members members{group->getRank(), std::vector<int>(group->getSize()), group->getGroupName()};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return members;
}

std::shared_ptr<comm::Store> WorldState::watched(std::shared_ptr<comm::Store> store, std::vector<int> ranks) const {
  {
    MutexLock lock(mutex_);
    if (!rendezvous_ || !rendezvous_->sees_ends()) return store;
  }
  // The world of this process is never destroyed.
  return comm::make_watched_store(std::move(store), [this, ranks = std::move(ranks)] { return check_present(ranks); });
}

Status WorldState::check_present(const std::vector<int>& ranks) const {
  std::optional<comm::Rendezvous> met;
  ProcessGroup world;
  {
    MutexLock lock(mutex_);
    met = rendezvous_;
    world = default_;
  }
  if (!met || world == nullptr) return {};
  const Result<std::vector<int>> answer = met->gone();
  if (!answer.ok()) return {};  // a store that is lost ends the wait by itself
  const std::vector<int>& gone = answer.value();
  const auto lost = std::find_if(ranks.begin(), ranks.end(), [&](int rank) {
    return rank != met->rank && std::find(gone.begin(), gone.end(), rank) != gone.end();
  });
  if (lost == ranks.end()) return {};
  const comm::Member& member = met->members[*lost];
  return {ErrorCode::kPeerFailed,
          comm::caused(cause_in(world),
                       fmt::format("rank {} (pid {} on {}) died or left the world", *lost, member.pid, member.host))};
}

int WorldState::count(const std::string& key) {
  MutexLock lock(mutex_);
  return ++counts_[key];
}

ProcessGroup make_handle(const WorldState::Members& members, const std::shared_ptr<comm::Store>& store,
                         const std::vector<DeviceBackend>& backends) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<StoreAdapter>(store), members.rank,
                                                       static_cast<int>(members.ranks.size()));
  for (const auto& [device, type, backend] : backends) {
    // setBackend() replaces each backend's device by that of the group, which has none.
    const auto bound = backend->getBoundDeviceId();
    group->setBackend(device, type, backend);
    backend->setBoundDeviceId(bound);
  }
  if (!backends.empty()) group->setDefaultBackend(backends.front().type);
  group->setGroupName(members.name);
  return group;
}

}  // namespace lockstep
