// LocalGroup: the engine for ranks that share a machine. docs/collectives.md describes how it works.
//
// This class takes the calls and waits. It holds the lock around its parts, and breaks the group. The ranks do all work
// inside these calls; there is no thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective.h"
#include "collective_queue.h"
#include "engine/core/group.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "local_failure_watch.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"
#include "mailbox.h"
#include "small_call.h"
#include "streams.h"
#include "waiting.h"

namespace lockstep::comm {

class LocalGroup final : public Group, public std::enable_shared_from_this<LocalGroup> {
 public:
  // Collective: the ranks give one another access to their memory.
  static Result<std::shared_ptr<LocalGroup>> create(Store& store, const CommunicatorOptions& options,
                                                    Deadline deadline);

  Status run(const RequestView& request, Deadline deadline) override;
  Result<std::shared_ptr<Operation::State>> start(Request request, KeepAlive keep_alive) override;
  Status run(Transfer transfer, Deadline deadline) override;
  Result<std::shared_ptr<Operation::State>> start(Transfer transfer, KeepAlive keep_alive) override;
  Status wait(Operation::State& state, Deadline deadline) override;
  bool test(Operation::State& state) override;
  void progress() override;
  bool try_progress() override;
  void abort(const std::string& reason) override;
  Status health() const override { return waiting_.health(); }
  Failure failure() const override;
  void hear(const Failure& failure) override;
  void show_wait(const std::string& what) override { memory_.wait_note(rank_).write(what); }
  Status check_present(const std::vector<int>& ranks) override { return watch_.check_present(ranks); }
  bool shares_memory() const override { return true; }
  std::uint64_t identity() const override { return memory_.header().identity.load(std::memory_order_relaxed); }
  std::vector<int> absent(std::uint64_t sequence) const override { return watch_.absent(sequence); }
  void close() override;

  // For a HierarchicalGroup, which progresses several groups while it waits, and looks for deaths itself.
  Result<std::shared_ptr<LocalOperation>> launch(Request request, KeepAlive keep_alive, Caller caller);
  Result<std::shared_ptr<LocalOperation>> launch(Transfer transfer, KeepAlive keep_alive);
  // Like test(), but progresses this group alone.
  bool test_locally(LocalOperation& operation);
  // Takes in messages that have arrived, and begins a look at them; nothing if none waits for a receive.
  std::optional<MessageLook> progress_messages();
  // Receives a message of this look; false if none matches.
  bool try_receive(Transfer& transfer, MessageLook& look);

  const GroupMemory& memory() const { return memory_; }
  const Waiting& waiting() const { return waiting_; }

 private:
  LocalGroup(const CommunicatorOptions& options, HandOver parts);

  // Whether an operation can begin, and why it cannot.
  bool is_open() const LOCKSTEP_REQUIRES(mutex_) { return !closed_ && !waiting_.aborted(); }
  Status why_not_open() const LOCKSTEP_REQUIRES(mutex_) { return closed_ ? destroyed() : waiting_.abort_status(); }
  // Numbers a collective, and posts it, now or when it is its turn. `operation`: what owns it; null: a blocking call.
  Status begin(Collective& collective, const std::shared_ptr<LocalOperation>& operation) LOCKSTEP_REQUIRES(mutex_);
  bool has_work() const LOCKSTEP_REQUIRES(mutex_) { return !collectives_.empty() || mailbox_.has_work(); }
  // Moves everything that is under way; with `help`, also does tickets of other ranks.
  void progress_all(bool help) LOCKSTEP_REQUIRES(mutex_);
  // After anything that may have ended a started operation.
  void update_busy() LOCKSTEP_REQUIRES(mutex_);
  std::size_t under_way() const LOCKSTEP_REQUIRES(mutex_) {
    return collectives_.under_way() + mailbox_.started().size();
  }

  // blocking_calls.cpp
  Status run_general(Request request, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // True: the operation is over. False: `collective` continues it, or is empty if it has not begun.
  bool run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective)
      LOCKSTEP_EXCLUDES(mutex_);
  Status finish(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  bool finish_at_once(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  Status finish_waiting(Collective& collective, Deadline deadline, Watch& watch) LOCKSTEP_EXCLUDES(mutex_);
  Status stream(Collective& collective, Deadline deadline, Watch& watch) LOCKSTEP_EXCLUDES(mutex_);

  // Called by waits. If the wait cannot succeed any more, breaks the group and says why; else ok.
  Status check(const Collective& collective, bool expired, Watch& watch) LOCKSTEP_EXCLUDES(mutex_);
  Status check(const Transfer& transfer, bool expired, Watch& watch) LOCKSTEP_EXCLUDES(mutex_);
  Status check(const LocalOperation& operation, bool expired, Watch& watch) LOCKSTEP_EXCLUDES(mutex_);
  void check_while_testing(LocalOperation& operation) LOCKSTEP_EXCLUDES(mutex_);
  // The first reason stays, and is returned.
  Status break_group(const Status& why) const;
  // After a failure: returns once the caller may use its buffers again.
  void forget(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  void end_orphan(LocalOperation& operation) LOCKSTEP_EXCLUDES(mutex_);
  void break_by_leaving(const std::string& operation) const;

  const GroupMemory memory_;
  const Waiting waiting_;
  const LocalFailureWatch watch_;
  std::atomic<bool> stuck_{false};  // a rank has stopped inside a ticket: calls no longer wait for such ranks

  Mutex mutex_;
  CollectiveQueue collectives_ LOCKSTEP_GUARDED_BY(mutex_);
  Mailbox mailbox_ LOCKSTEP_GUARDED_BY(mutex_);
  SmallCallCache small_calls_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // These serve one operation at a time, in the order of the sequence numbers.
  StagingRing ring_;
  ReduceStream reduce_stream_;
  MoveStream move_stream_;
};

}  // namespace lockstep::comm
