#include "c10d/world/own_group.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "c10d/world/group_watch.h"
#include "c10d/world/world_state.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/c10d/group_backend.h"

namespace lockstep {
namespace {

// The groups that shared_own_group has made, by that of the program and by name.
class Shared {
 public:
  static Shared& of_process() {
    static constinit OfProcess<Shared> shared;
    return shared.get();
  }

  ProcessGroup find_or_make(const ProcessGroup& group, c10::DeviceType device, const std::string& user) {
    // Making one waits for other ranks. Those of one process that ask at the same time wait for the first.
    MutexLock making(making_);
    const Key key{group.get(), device, user};
    {
      MutexLock lock(mutex_);
      const auto found = groups_.find(key);
      if (found != groups_.end() && !found->second.of.expired()) return found->second.own;
    }
    forget([](const Entry& entry) { return entry.of.expired(); });
    ProcessGroup own = own_group(group, device, user);
    MutexLock lock(mutex_);
    // Not `group` itself, which would then never go.
    if (own != group) groups_.insert_or_assign(key, Entry{c10::weak_intrusive_ptr<c10d::ProcessGroup>(group), own});
    return own;
  }

  void forget(const ProcessGroup& group) {
    forget([&](const Entry& entry) { return entry.of.lock() == group; });
  }

 private:
  struct Key {
    const c10d::ProcessGroup* group;
    c10::DeviceType device;
    std::string user;
    bool operator<(const Key& other) const {
      return std::tie(group, device, user) < std::tie(other.group, other.device, other.user);
    }
  };
  struct Entry {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> of;
    ProcessGroup own;
  };

  template <typename Which>
  void forget(const Which& which) {
    std::vector<Entry> old;  // left without the lock
    MutexLock lock(mutex_);
    for (auto entry = groups_.begin(); entry != groups_.end();) {
      if (!which(entry->second)) {
        ++entry;
        continue;
      }
      old.push_back(std::move(entry->second));
      entry = groups_.erase(entry);
    }
  }

  Mutex making_;
  Mutex mutex_;
  std::map<Key, Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

ProcessGroup own_group(const ProcessGroup& group, c10::DeviceType device, const std::string& user) {
  WorldState& world = WorldState::of_process();
  const ProcessGroup whole = group != nullptr ? group : world.default_group("own_group");
  if (whole->getSize() == 1 || world.is_own(whole)) return group;
  const auto backend = whole->getBackend(device);
  auto* const ours = dynamic_cast<GroupBackend*>(backend.get());
  if (ours == nullptr) return group;
  WorldState::Members members = world.members(whole);
  members.name = fmt::format("{} ({})", members.name, user);
  const auto twin = [&] {
    try {
      return ours->make_twin(members.name);
    } catch (const std::exception& error) {
      world.check_store_loss(error, fmt::format("making group '{}'", members.name));
      throw;
    }
  }();
  std::vector<DeviceBackend> backends;
  for (const auto& served : whole->getDeviceTypes()) {
    if (whole->getBackend(served.type()) != backend) continue;
    const bool mpi = backend->getBackendName() == "mpi";
    backends.push_back(
        {served.type(), mpi ? c10d::ProcessGroup::BackendType::MPI : c10d::ProcessGroup::BackendType::CUSTOM, twin});
  }
  ProcessGroup own = make_handle(members, world.facts("own_group").store, backends);
  world.add(own, std::move(members), whole);
  return own;
}

void keep_own_group(const ProcessGroup& own) {
  WorldState& world = WorldState::of_process();
  if (own != nullptr && world.is_own(own)) world.keep(own);
}

ProcessGroup group_beside(const ProcessGroup& group) {
  return WorldState::of_process().beside(group);
}

ProcessGroup shared_own_group(const ProcessGroup& group, c10::DeviceType device, const std::string& user) {
  watch_groups([](const ProcessGroup& left) { Shared::of_process().forget(left); });
  const ProcessGroup whole = group != nullptr ? group : default_group();
  return Shared::of_process().find_or_make(whole, device, user);
}

}  // namespace lockstep
