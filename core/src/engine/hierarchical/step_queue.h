// StepQueue: the collectives of a group that spans machines, on this rank. Their steps begin in the order of the calls,
// as many as StepWindow allows, and progress inside calls of this rank. Not thread-safe: the group's lock is held
// around every call.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "call_board.h"
#include "group_context.h"
#include "hierarchical_operation.h"
#include "local_groups.h"
#include "step_window.h"

namespace lockstep::comm {

class StepQueue {
 public:
  StepQueue(const GroupContext& context, const LocalGroups& locals, const CallBoard& board)
      : context_(context), locals_(locals), board_(board) {}

  void add(const std::shared_ptr<HierarchicalOperation>& operation);
  // Moves what is under way, without waiting. Whether anything moved.
  bool progress();
  // Why the group must break; ok: it need not.
  const Status& failure() const { return failure_; }
  // Ends every operation with this error. Break the local groups and close the transport first.
  void fail(const Status& status);

  // How many operations are not over.
  int pending() const { return pending_; }
  // The oldest operation that is not over; null: there is none.
  const HierarchicalOperation* oldest() const;

  // The messages of the oldest step that has begun; null: there is none.
  const StepMessages* messages() const;
  // The ranks that this step waits for; empty also if there is none.
  std::vector<int> awaited() const;
  // How far the step's local operation is: phase, sequence number, tickets done. Nothing if none is under way.
  using LocalPosition = std::array<std::uint64_t, 3>;
  std::optional<LocalPosition> local_position() const;

 private:
  enum class Phase { kBefore, kExchange, kWaiting, kAfter, kDone };
  struct Active {
    std::shared_ptr<HierarchicalOperation> operation;
    std::unique_ptr<Step> step;
    Phase phase = Phase::kBefore;
    std::shared_ptr<LocalOperation> local;  // before or after
  };

  void begin_steps();
  bool begin_step(const std::shared_ptr<HierarchicalOperation>& operation);
  bool progress_step(Active& active) const;
  Result<std::shared_ptr<LocalOperation>> launch(LocalGroup& group, Request request, bool blocking) const;
  bool local_is_over(const Active& active) const;
  // The local group in which a step's operation runs.
  LocalGroup& group_of(const Active& active) const {
    return active.phase == Phase::kBefore ? locals_.before() : locals_.after();
  }
  void end_first_step();

  const GroupContext& context_;
  const LocalGroups& locals_;
  const CallBoard& board_;
  std::deque<std::shared_ptr<HierarchicalOperation>> queue_;  // with steps to begin
  std::deque<Active> active_;
  StepWindow window_;
  std::uint64_t next_step_ = 1;
  int pending_ = 0;
  Status failure_;
};

}  // namespace lockstep::comm
