// The world of this process: what init_process_group made, and the groups made from it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "c10d/backend/call_checks.h"
#include "c10d/world/backends.h"
#include "lockstep/base/mutex.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/launch/world.h"
#include "lockstep/store/rendezvous.h"
#include "store/membership/meeting_place.h"

namespace lockstep {

class WorldState {
 public:
  struct Facts {
    std::shared_ptr<comm::Store> store;
    int rank = 0;
    int world_size = 1;
    launch::World place = {};                                       // this rank among all ranks and on its machine
    std::shared_ptr<const std::vector<comm::Member>> members = {};  // the records of all ranks
    std::chrono::milliseconds timeout{0};
    BackendChoice backends = {};
    c10::Device device{c10::kCPU};  // that this rank computes on
    BackendOptions backend_options = nullptr;
    std::string job_key = {};  // empty: LOCKSTEP_JOB_KEY
    // Whether the ranks are those of a communicator of the program's own.
    bool of_communicator = false;
    // In whose meeting place the store is; none: in a launcher, or in a process that the rendezvous looks after.
    std::optional<int> store_rank = {};
  };
  struct Members {
    int rank = -1;           // this process's group rank; -1: not a member
    std::vector<int> ranks;  // of the world, by group rank
    std::string name;
  };

  // Never destroyed: leaving the world at exit is the job of ProcessGroupGuard, not of static destructors.
  static WorldState& of_process();

  bool is_open() const LOCKSTEP_EXCLUDES(mutex_);
  void open(const ProcessGroup& group, Members members, const Facts& facts, comm::Rendezvous rendezvous)
      LOCKSTEP_EXCLUDES(mutex_);
  // Leaves all groups; collectives of a group that works first get up to `wait` to end. The rank that serves the store
  // then serves it until the others have left, for up to `wait`. Zero in a broken world.
  void close(std::chrono::milliseconds wait) LOCKSTEP_EXCLUDES(mutex_);

  // Leaves all groups for others in their place: the world's handle stays, and every use of it and of the groups throws
  // `why`, until open() or close(). The world's meeting place stays too.
  void leave_for(const Status& why) LOCKSTEP_EXCLUDES(mutex_);
  // Opened at the first call, kept until close().
  std::shared_ptr<comm::MeetingPlace> meeting_place(const char* what) LOCKSTEP_EXCLUDES(mutex_);
  // The handles of all ranks, by rank; empty: they were not told.
  std::vector<std::string> handles() const LOCKSTEP_EXCLUDES(mutex_);
  void set_handles(std::vector<std::string> handles) LOCKSTEP_EXCLUDES(mutex_);

  // Whether the world or a group of it is broken.
  bool has_failed() const LOCKSTEP_EXCLUDES(mutex_);

  // The world's handle, also after leave_for(); null without a world.
  ProcessGroup handle() const LOCKSTEP_EXCLUDES(mutex_);

  // These throw "call init_process_group first" without a world, and why it was left after leave_for(); `what` is the
  // caller's name.
  ProcessGroup default_group(const char* what) const LOCKSTEP_EXCLUDES(mutex_);
  Facts facts(const char* what) const LOCKSTEP_EXCLUDES(mutex_);
  // After leave_for(): of the world that was left.
  Facts facts_to_reconfigure(const char* what) const LOCKSTEP_EXCLUDES(mutex_);

  // `of`: the group of the program that a group of this library's own stands beside (own_group.h); null: it is none.
  void add(const ProcessGroup& group, Members members, const ProcessGroup& of = nullptr) LOCKSTEP_EXCLUDES(mutex_);
  // Leaves it, and this library's own groups beside it. Later uses throw `why`; ok: that this rank has left.
  void remove(const ProcessGroup& group, const Status& why = {}) LOCKSTEP_EXCLUDES(mutex_);
  // Keeps one of this library's own groups, which has operations under way, until the group beside it is left.
  void keep(const ProcessGroup& own) LOCKSTEP_EXCLUDES(mutex_);
  // Whether it was made from a world that reconfigure() has replaced.
  bool is_of_earlier_world(const ProcessGroup& group) const LOCKSTEP_EXCLUDES(mutex_);
  // Whether it is one of this library's own.
  bool is_own(const ProcessGroup& group) const LOCKSTEP_EXCLUDES(mutex_);
  // The group that `group` stands beside, if it is one of this library's own; else `group`.
  ProcessGroup beside(const ProcessGroup& group) const LOCKSTEP_EXCLUDES(mutex_);
  // This library's own groups beside `group` that were not left.
  std::vector<ProcessGroup> own_groups(const ProcessGroup& group) const LOCKSTEP_EXCLUDES(mutex_);
  // The members of a group that this process has made, also after it was left. Groups made elsewhere count as having
  // ranks 0 to n - 1.
  Members members(const ProcessGroup& group) const LOCKSTEP_EXCLUDES(mutex_);

  // A view of `store`, for these ranks of the world to make a group: a wait for a key fails with kPeerFailed soon after
  // one of them has ended or left, as far as the world's store knows that (comm::Rendezvous::gone).
  std::shared_ptr<comm::Store> watched(std::shared_ptr<comm::Store> store, std::vector<int> ranks) const;

  // For a call that has used the world's store and failed with `error`: if the store was lost, throws kPeerFailed, with
  // the rank that has died where that can be seen. Else it returns.
  void check_store_loss(const std::exception& error, const std::string& what) const;

  // Returns 1 for the first call with this key since the world was opened, then 2, ...
  int count(const std::string& key) LOCKSTEP_EXCLUDES(mutex_);

 private:
  // kPeerFailed: one of these ranks has ended or left.
  Status check_present(const std::vector<int>& ranks) const LOCKSTEP_EXCLUDES(mutex_);
  // The groups that were not left.
  std::vector<ProcessGroup> living_groups() const LOCKSTEP_REQUIRES(mutex_);

  struct Entry {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    Members members;
    const c10d::ProcessGroup* of = nullptr;  // of one of this library's own
    int world = 0;                           // the number of the world
    bool left = false;
  };

  mutable Mutex mutex_;
  ProcessGroup default_ LOCKSTEP_GUARDED_BY(mutex_);
  Facts facts_ LOCKSTEP_GUARDED_BY(mutex_);
  int worlds_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // how many were opened
  std::optional<comm::Rendezvous> rendezvous_ LOCKSTEP_GUARDED_BY(mutex_);
  // Entries stay as long as their handles: somebody may ask for their members at any time.
  std::map<const c10d::ProcessGroup*, Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<ProcessGroup> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::string, int> counts_ LOCKSTEP_GUARDED_BY(mutex_);
  Status why_left_ LOCKSTEP_GUARDED_BY(mutex_);  // between leave_for() and open()
  std::shared_ptr<comm::MeetingPlace> place_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::string> handles_ LOCKSTEP_GUARDED_BY(mutex_);
};

// What the ranks of a world have in common before they meet.
struct WorldPlan {
  BackendChoice backends;
  std::string name = "world";
  BackendOptions backend_options = nullptr;
  std::chrono::milliseconds timeout;  // of operations
  std::string job_key = {};           // empty: LOCKSTEP_JOB_KEY
  std::optional<int> store_rank = {};
  const ProgramCommunicator* communicator = nullptr;  // whose ranks these are; may be null
};

// Makes the backends and opens the world, once all ranks are known to want the same backends. `place`: none: worked out
// from the records of all ranks.
void open_world(const WorldPlan& plan, const comm::Rendezvous& met, std::optional<launch::World> place,
                Deadline deadline);

// A handle with these backends by device; without backends: the handle of a rank that is no member.
ProcessGroup make_handle(const WorldState::Members& members, const std::shared_ptr<comm::Store>& store,
                         const std::vector<DeviceBackend>& backends);

}  // namespace lockstep
