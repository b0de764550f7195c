// HierarchicalGroup: the engine for ranks on several machines.
//
// The ranks of each machine have two local groups (for the operations before and after an exchange, see step.h), and
// each rank has its own transport. An operation is a sequence of steps. Steps begin in order, at most kWindow at a
// time. They progress inside any call of this rank; there is no thread. See docs/collectives.md, "Between machines".
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/topology.h"
#include "engine/local/local_group.h"
#include "hierarchical_mailbox.h"
#include "integer_mean.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"
#include "net/transport.h"
#include "step.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

// A collective under way.
struct HierarchicalOperation {
  Request request;
  std::uint64_t sequence = 0;
  bool blocking = false;
  Communicator::KeepAlive keep_alive;
  Call call;                                // of this rank
  std::vector<Call> calls;                  // of all ranks, once they have met
  std::vector<SizeEntry> row;               // sizes of this rank, if they differ between ranks
  std::vector<SizeEntry> table;             // sizes of all ranks
  std::unique_ptr<IntegerMean> mean;        // if set, the steps work on its request instead of `request`
  std::deque<std::unique_ptr<Step>> steps;  // not begun
  int active = 0;                           // begun and not over
  bool planned = false;                     // no steps will be added
  Status status;
  std::atomic<bool> over{false};
};

// The caller's handle of a collective of this engine.
struct StartedCollective final : Operation::State {
  using Operation::State::State;
  bool is_over() const override { return operation->over.load(std::memory_order_acquire); }
  std::uint64_t sequence() const override { return operation->sequence; }

  std::shared_ptr<HierarchicalOperation> operation;
};

class HierarchicalGroup final : public Group, public std::enable_shared_from_this<HierarchicalGroup> {
 public:
  // Small enough that a local group's ring of slots (kRing) is never full. A rank that begins step s has seen the end
  // of step s - kWindow. So all others have begun that step, and have seen the end of step s - 2 * kWindow.
  static constexpr std::size_t kWindow = 8;

  // Collective over the group.
  static Result<std::shared_ptr<HierarchicalGroup>> create(const std::shared_ptr<Store>& store,
                                                           const CommunicatorOptions& options, Topology topology);
  ~HierarchicalGroup() override;

  // The keys that create() leaves in the store.
  std::vector<std::string> meeting_keys() const;

  Status run(const RequestView& request, Deadline deadline) override;
  Result<std::shared_ptr<Operation::State>> start(Request request, KeepAlive keep_alive, Deadline admission) override;
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
  std::vector<int> absent(std::uint64_t sequence) const override;
  void close() override;

 private:
  enum class Stage { kBefore, kExchange, kWaiting, kAfter, kDone };
  struct Active {
    std::shared_ptr<HierarchicalOperation> operation;
    std::unique_ptr<Step> step;
    Stage stage = Stage::kBefore;
    std::shared_ptr<LocalOperation> local;  // before or after
  };
  // What a rank shows the others of its machine: its own last call, and what it knows of the calls of other machines'
  // ranks. One call_word() for each rank of the group.
  using Board = std::atomic<std::uint64_t>*;

  HierarchicalGroup(const CommunicatorOptions& options, Topology topology);
  Status open(const std::shared_ptr<Store>& store, Deadline deadline);
  void give_up(const std::string& why) LOCKSTEP_EXCLUDES(mutex_);
  std::string address_key(int rank) const;
  // The name of a local group.
  std::string local_name(int machine, const char* what) const;
  Result<std::shared_ptr<LocalGroup>> open_local(const std::shared_ptr<Store>& store, const char* what,
                                                 Deadline deadline) const;
  Status exchange_addresses(const std::shared_ptr<Store>& store, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Status who_did_not_publish(Store& store, const Status& why) const;
  Status share_boards(Deadline deadline);
  Status greet(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);

  Result<std::shared_ptr<HierarchicalOperation>> begin(Request request, bool blocking,
                                                       Communicator::KeepAlive keep_alive, Deadline admission)
      LOCKSTEP_EXCLUDES(mutex_);
  // Adds a send or receive to those under way.
  Status begin(const std::shared_ptr<Operation::State>& transfer) LOCKSTEP_REQUIRES(mutex_);
  // The local group in which a step's operation runs.
  LocalGroup& local_group(const Active& active) const { return active.stage == Stage::kBefore ? *before_ : *after_; }
  // Moves what is under way, without waiting. Whether anything moved.
  bool progress_all() LOCKSTEP_REQUIRES(mutex_);
  bool has_room() const LOCKSTEP_REQUIRES(mutex_);
  void begin_steps() LOCKSTEP_REQUIRES(mutex_);
  bool progress_step(Active& active) LOCKSTEP_REQUIRES(mutex_);
  bool local_is_over(Active& active) LOCKSTEP_REQUIRES(mutex_);
  void step_over(HierarchicalOperation& operation) LOCKSTEP_REQUIRES(mutex_);
  void end(HierarchicalOperation& operation, Status status) LOCKSTEP_REQUIRES(mutex_);
  void remove_finished_transfers() LOCKSTEP_REQUIRES(mutex_);
  void finish_meeting(HierarchicalOperation& operation) LOCKSTEP_REQUIRES(mutex_);
  void plan(HierarchicalOperation& operation) LOCKSTEP_REQUIRES(mutex_);
  void apply_payloads(HierarchicalOperation& operation) const;

  // Waits until `over` returns true, the group breaks, or the deadline passes.
  Status wait_until_over(const std::function<bool()>& over, const Transfer* transfer, Deadline deadline)
      LOCKSTEP_EXCLUDES(mutex_);
  // The next step of a wait in which nothing has moved for `idle`. True if another group moved.
  bool pause(std::chrono::steady_clock::duration idle) LOCKSTEP_EXCLUDES(mutex_);

  // failure_watch.cpp
  // Called by the transport, from within progress_all().
  bool on_active_message(const ActiveMessage& message) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  void tell_neighbours(ActiveMessageHeader::Type type, std::int64_t value, const std::string& text)
      LOCKSTEP_REQUIRES(mutex_);
  void send_news(bool conditions) LOCKSTEP_REQUIRES(mutex_);
  void take_news(int source, std::string_view news) LOCKSTEP_REQUIRES(mutex_);
  // Called by waits. If the wait cannot succeed any more, breaks the group and says why; else ok.
  Status check(const Transfer* transfer, bool expired, std::chrono::steady_clock::time_point progressed)
      LOCKSTEP_REQUIRES(mutex_);
  Status check_local_groups() LOCKSTEP_REQUIRES(mutex_);
  Status check_deaths(const Transfer* transfer, std::chrono::steady_clock::duration stuck) LOCKSTEP_REQUIRES(mutex_);
  // Asks the others what they have called, because with a short timeout no news have come yet. True once their answers
  // have had time to arrive. `late`: the number of the collective that is late, or kMessages.
  bool has_asked(std::uint64_t late) LOCKSTEP_REQUIRES(mutex_);
  // "1 (on node7, stopped by a signal)" for each rank that is known to have stopped, or did not answer. Without those
  // already `named`.
  std::vector<std::string> who_stands_still(const std::vector<int>& named) const LOCKSTEP_REQUIRES(mutex_);
  bool local_operation_is_stuck() LOCKSTEP_REQUIRES(mutex_);
  Status timed_out(const Transfer* transfer) LOCKSTEP_REQUIRES(mutex_);
  // The first reason stays. Afterwards no operation of this rank is under way.
  Status break_group(ErrorCode code, const std::string& reason) LOCKSTEP_REQUIRES(mutex_);
  bool is_gone(int rank) const LOCKSTEP_REQUIRES(mutex_);
  bool has_left(int rank) const LOCKSTEP_REQUIRES(mutex_);
  // The error text for a rank that is gone.
  std::string loss_of(int rank, const std::string& during) const LOCKSTEP_REQUIRES(mutex_);
  std::vector<int> awaited(const Transfer* transfer) const LOCKSTEP_REQUIRES(mutex_);
  std::uint64_t call_of(int rank) const;
  void note_call(int rank, std::uint64_t call) const;
  // What error texts say of a rank.
  std::string last_call(int rank) const;
  std::string condition(int rank) const LOCKSTEP_REQUIRES(mutex_);
  std::string why_still(int rank) const LOCKSTEP_REQUIRES(mutex_);
  std::string known_cause(int rank) const LOCKSTEP_REQUIRES(mutex_);
  std::string describe(const HierarchicalOperation& operation) const;

  const Topology topology_;
  std::shared_ptr<LocalGroup> before_;  // local groups for the operations before and after an exchange
  std::shared_ptr<LocalGroup> after_;
  Staging board_staging_;
  std::vector<Board> boards_;  // by local index
  std::string token_;          // every active message of this group begins with it

  mutable Mutex mutex_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<StepContext> context_;
  std::unique_ptr<HierarchicalMailbox> mailbox_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<HierarchicalOperation>> queue_ LOCKSTEP_GUARDED_BY(mutex_);  // with steps to begin
  std::deque<Active> active_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t under_way_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // bytes() of the active steps
  int pending_ LOCKSTEP_GUARDED_BY(mutex_) = 0;            // operations that are not over
  std::vector<std::shared_ptr<Operation::State>> transfers_ LOCKSTEP_GUARDED_BY(mutex_);  // started, not over
  std::uint64_t next_step_ LOCKSTEP_GUARDED_BY(mutex_) = 1;
  std::deque<std::pair<TransportRequest, std::string>> outgoing_
      LOCKSTEP_GUARDED_BY(mutex_);  // active messages on their way
  std::vector<bool> greeted_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<bool> left_ LOCKSTEP_GUARDED_BY(mutex_);                 // remote ranks that have said goodbye
  std::vector<std::string> known_causes_ LOCKSTEP_GUARDED_BY(mutex_);  // known causes of remote ranks
  std::vector<std::string> conditions_ LOCKSTEP_GUARDED_BY(mutex_);  // of remote ranks, from the news of their machines
  std::vector<bool> answered_ LOCKSTEP_GUARDED_BY(mutex_);           // since this rank last asked
  // How far the oldest local operation is (stage, sequence number, tickets done), and since when.
  std::array<std::uint64_t, 3> local_at_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  std::chrono::steady_clock::time_point local_since_ LOCKSTEP_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point last_news_ LOCKSTEP_GUARDED_BY(mutex_);
  bool asked_ LOCKSTEP_GUARDED_BY(mutex_) = false;             // another rank wants news
  std::uint64_t asked_about_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the collective that was late, or kMessages
  std::chrono::steady_clock::time_point asked_at_ LOCKSTEP_GUARDED_BY(mutex_);
  Status reported_break_ LOCKSTEP_GUARDED_BY(mutex_);  // from an active message; break_group() follows
  Status break_status_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::comm
