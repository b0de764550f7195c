// LocalGroup: the engine for ranks that share a machine. It owns the group's memory, numbers the collectives, and
// progresses everything that is under way. docs/collectives.md describes how it works.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "collective.h"
#include "copy_ways.h"
#include "engine/core/group.h"
#include "engine/core/group_registry.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"
#include "mailbox.h"
#include "move_stream.h"
#include "reduce_stream.h"
#include "small_call.h"
#include "waiting.h"

namespace lockstep::comm {

// A started collective of this engine; `collective` is null for a transfer.
struct LocalOperation final : Operation::State {
  using Operation::State::State;
  std::uint64_t sequence() const override { return collective ? collective->sequence() : 0; }

  std::unique_ptr<Collective> collective;
  std::list<std::shared_ptr<LocalOperation>>::iterator place;  // of a transfer, in LocalGroup::transfers_
};

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
  void abort(const std::string& reason) override {
    waiting_.abort(ErrorCode::kAborted, caused(waiting_.known_cause(memory_.rank()), reason));
  }
  Status health() const override { return waiting_.aborted() ? waiting_.abort_status() : Status(); }
  Failure failure() const override;
  void hear(const Failure& failure) override;
  Status check_present(const std::vector<int>& ranks) override;
  std::vector<int> absent(std::uint64_t sequence) const override;
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

  // Whether the slot of the next post is free on every rank.
  bool slot_is_free() LOCKSTEP_REQUIRES(mutex_);
  // Whether a collective that is called now can post at once.
  bool admitted() LOCKSTEP_REQUIRES(mutex_) { return queue_.empty() && slot_is_free(); }
  // Numbers a collective, and posts it, now or when it is its turn. `operation`: what owns it; null: a blocking call.
  Status begin(Collective& collective, const std::shared_ptr<LocalOperation>& operation) LOCKSTEP_REQUIRES(mutex_);
  Status post(Collective& collective) LOCKSTEP_REQUIRES(mutex_);
  void post_queued() LOCKSTEP_REQUIRES(mutex_);
  Status run_general(Request request, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // True: the operation is over. False: `collective` continues it, or is empty if it has not begun.
  bool run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective)
      LOCKSTEP_EXCLUDES(mutex_);
  Status finish(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  bool finish_at_once(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  Status finish_waiting(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Status stream(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // Moves everything that is under way; with `help`, also does tickets of other ranks.
  void progress_all(bool help) LOCKSTEP_REQUIRES(mutex_);
  // Removes operations that are over and publishes how far this rank has come.
  void remove_finished() LOCKSTEP_REQUIRES(mutex_);
  std::size_t under_way() const LOCKSTEP_REQUIRES(mutex_) {
    return started_.size() + queue_.size() + transfers_.size();
  }
  // After a failure: returns once the caller may use its buffers again.
  void forget(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  Status withdraw(LocalOperation& operation, Status status) LOCKSTEP_EXCLUDES(mutex_);
  void check_while_testing(LocalOperation& operation) LOCKSTEP_EXCLUDES(mutex_);
  void end_orphan(LocalOperation& operation) LOCKSTEP_EXCLUDES(mutex_);
  bool mailbox_in_use(const Transfer& transfer) LOCKSTEP_EXCLUDES(mutex_);

  // Called by waits. If the wait cannot succeed any more, breaks the group and says why; else ok.
  Status check(const Collective& collective, bool expired, Watch& watch);
  Status check(const Transfer& transfer, bool expired) LOCKSTEP_EXCLUDES(mutex_);
  // Breaks the group because a rank is gone: "rank 1 (pid 7) died <when> (last call ...)".
  Status blame(int rank, const std::string& when);
  Status time_out(const Collective& collective, std::chrono::steady_clock::duration idle);
  Status time_out_in_queue(std::uint64_t oldest);
  // What the error of a timeout says of the ranks.
  std::vector<int> never_called(std::uint64_t sequence) const;
  std::vector<std::string> with_calls(const std::vector<int>& ranks) const;
  std::string cause_among(const std::vector<int>& ranks) const;
  std::vector<std::string> who_stands_still(const std::vector<int>& named) const;
  std::string who_is_busy(const Collective& collective) const;
  bool behind_in_stream(int rank) const;
  std::string describe(const Collective& collective) const;
  std::string last_call(int rank) const;

  const GroupMemory memory_;
  const Waiting waiting_;
  std::atomic<bool> stuck_{false};  // a rank has stopped inside a ticket: calls no longer wait for such ranks

  Mutex mutex_;
  std::uint64_t posted_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the number of the latest post
  std::uint64_t admitted_until_ LOCKSTEP_GUARDED_BY(mutex_) = kRing;
  std::vector<Collective*> pending_ LOCKSTEP_GUARDED_BY(mutex_);  // posted, not over
  // Not posted yet. A rank must not wait for its turn in start(): another rank may be starting collectives of another
  // group first.
  struct Queued {
    Collective* collective;
    std::shared_ptr<LocalOperation> operation;
  };
  std::deque<Queued> queue_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<LocalOperation>> started_ LOCKSTEP_GUARDED_BY(mutex_);  // collectives in pending_
  std::list<std::shared_ptr<LocalOperation>> transfers_ LOCKSTEP_GUARDED_BY(mutex_);
  Scratch scratch_ LOCKSTEP_GUARDED_BY(mutex_);
  Mailbox mailbox_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  CopyWays small_ways_ LOCKSTEP_GUARDED_BY(mutex_);
  bool payloads_touched_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // These serve one operation at a time, in the order of the sequence numbers.
  StagingRing ring_;
  ReduceStream reduce_stream_;
  MoveStream move_stream_;
};

}  // namespace lockstep::comm
