// HierarchicalGroup: the engine for ranks on several machines.
//
// The ranks of each machine have two local groups (LocalGroups), and each rank has its own transport. A collective is a
// sequence of steps (step.h, StepQueue); messages go through HierarchicalMailbox. Both progress inside any call of this
// rank; there is no thread. See docs/collectives.md, "Between machines".
//
// This class takes the calls and waits. It holds the lock around its parts, and breaks all of them at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control_messages.h"
#include "engine/core/group.h"
#include "engine/core/topology.h"
#include "failure_watch.h"
#include "group_context.h"
#include "hierarchical_mailbox.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"
#include "net/port_guard.h"
#include "peers.h"
#include "step_queue.h"

namespace lockstep::comm {

// Whom the transport of `rank` admits: the addresses of the other machines. This machine's own addresses are admitted
// only if another "machine" of the group shares them (by LOCKSTEP_MACHINE, or as another user), because any user here
// can use them.
Admitted admitted_to(const Topology& topology, int rank);

class HierarchicalGroup final : public Group, public std::enable_shared_from_this<HierarchicalGroup> {
 public:
  // Collective over the group.
  static Result<std::shared_ptr<HierarchicalGroup>> create(const std::shared_ptr<Store>& store,
                                                           const CommunicatorOptions& options, Topology topology);
  ~HierarchicalGroup() override;

  // The keys that create() leaves in the store.
  std::vector<std::string> meeting_keys() const;

  Status run(const RequestView& request, Deadline deadline) override;
  Result<std::shared_ptr<Operation::State>> start(Request request, KeepAlive keep_alive) override;
  Status run(Transfer transfer, Deadline deadline) override;
  Result<std::shared_ptr<Operation::State>> start(Transfer transfer, KeepAlive keep_alive) override;
  Status wait(Operation::State& state, Deadline deadline) override;
  bool test(Operation::State& state) override;
  void progress() override;
  bool try_progress() override;
  void abort(const std::string& reason) override;
  Status health() const override;
  Failure failure() const override;
  void hear(const Failure& failure) override;
  void show_wait(const std::string& what) override { locals_.before().show_wait(what); }
  Status check_present(const std::vector<int>& ranks) override;
  bool shares_memory() const override { return false; }
  std::uint64_t identity() const override;
  std::vector<int> absent(std::uint64_t sequence) const override;
  void close() override;

 private:
  // They exist once the ranks know one another's addresses.
  struct Parts {
    Parts(GroupContext its_context, const LocalGroups& locals, const CallBoard& board)
        : context(std::move(its_context)),
          peers(context, locals),
          messages(context, peers, board),
          mailbox(context, locals.before()),
          steps(context, locals, board),
          watch(context, peers, board, steps, messages) {}
    bool idle() const { return steps.pending() == 0 && mailbox.idle(); }

    const GroupContext context;
    Peers peers;
    ControlMessages messages;
    HierarchicalMailbox mailbox;
    StepQueue steps;
    FailureWatch watch;
  };

  // open_group.cpp
  HierarchicalGroup(const CommunicatorOptions& options, Topology topology);
  Status open(const std::shared_ptr<Store>& store, const CommunicatorOptions& options) LOCKSTEP_EXCLUDES(mutex_);
  // Returns the group's token.
  Result<std::string> connect(Store& store, const CommunicatorOptions& options, Deadline deadline);
  void give_up(const std::string& why) LOCKSTEP_EXCLUDES(mutex_);
  Status greet(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Status no_connection(std::vector<int> silent, bool expired) const;
  std::string what_is_under_way() const LOCKSTEP_REQUIRES(mutex_);

  // Begins a collective.
  Result<std::shared_ptr<HierarchicalOperation>> begin(Request request, bool blocking, KeepAlive keep_alive)
      LOCKSTEP_EXCLUDES(mutex_);
  Status begin(const std::shared_ptr<HierarchicalState>& transfer) LOCKSTEP_REQUIRES(mutex_);
  // Moves what is under way, without waiting. Whether anything moved.
  bool progress_all() LOCKSTEP_REQUIRES(mutex_);
  void finish_transfers() LOCKSTEP_REQUIRES(mutex_);
  // Called by the transport, from within progress_all().
  bool on_active_message(ActiveMessage message) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;

  // Waits until `over` returns true, the group breaks, or the deadline passes. `transfer`: what the caller waits for;
  // null: a collective.
  Status wait_until_over(const std::function<bool()>& over, const Transfer* transfer, Deadline deadline)
      LOCKSTEP_EXCLUDES(mutex_);
  // The next step of a wait in which nothing has moved for `idle`. True if another group moved.
  bool pause(std::chrono::steady_clock::duration idle) LOCKSTEP_EXCLUDES(mutex_);
  // Called by waits. If the wait cannot succeed any more, breaks the group and says why; else ok.
  Status check(const Transfer* transfer, bool expired, Watch& watch) LOCKSTEP_REQUIRES(mutex_);
  // Finds out whether another rank of this machine has broken the group.
  Status check_local_groups() LOCKSTEP_REQUIRES(mutex_);
  // The first reason stays, and is returned. Afterwards no operation of this rank is under way.
  Status break_group(const Status& why) LOCKSTEP_REQUIRES(mutex_);

  const Topology topology_;
  // These three do not change once the group is open.
  LocalGroups locals_;
  CallBoard board_;
  std::unique_ptr<Transport> transport_;

  mutable Mutex mutex_;
  std::unique_ptr<Parts> parts_ LOCKSTEP_GUARDED_BY(mutex_);
  Status break_status_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::comm
