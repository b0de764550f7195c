// Which steps of a group that spans machines run when: StepWindow says how many at once, StepQueue in which order.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/local/control.h"
#include "group_context.h"
#include "hierarchical_operation.h"
#include "peers.h"

namespace lockstep::comm {

// StepWindow: how many steps a rank has under way at once. Two large steps keep the network busy. More of them would
// only push one another out of the caches.
class StepWindow {
 public:
  static constexpr std::size_t kSteps = 8;
  // A third step begins only while those under way exchange less than this together.
  static constexpr std::size_t kBytes = std::size_t{512} << 10;
  // A local group's ring of slots is never full: a rank that begins step s has seen the end of step s - kSteps. So all
  // others have begun that step, and have seen the end of step s - 2 * kSteps.
  static_assert(2 * kSteps <= kRing);

  bool has_room() const { return steps_ < kSteps && (steps_ < 2 || bytes_ < kBytes); }
  // `bytes`: what the step exchanges (Step::bytes).
  void enter(std::size_t bytes) {
    ++steps_;
    bytes_ += bytes;
  }
  void leave(std::size_t bytes) {
    --steps_;
    bytes_ -= bytes;
  }

 private:
  std::size_t steps_ = 0;
  std::size_t bytes_ = 0;
};

// StepQueue: the collectives of a group that spans machines, on this rank. Their steps begin in the order of the calls,
// as many as StepWindow allows, and progress inside calls of this rank. Not thread-safe: the group's lock is held
// around every call.
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

  // What error texts say of the last call of `rank`: "last call barrier #2 at src/train.cpp:41".
  std::string last_call(int rank) const;
  // The number of the last collective that has ended on this rank.
  std::uint64_t last_met() const { return last_met_; }
  // What error texts say of the oldest operation: "; rank 0 has exchanged about 12.0 of 48.0 MiB with other machines".
  // Empty if it is small.
  std::string describe_progress() const;

  // The messages of the oldest step that has begun; null: there is none.
  const StepMessages* messages() const;
  // The ranks that this step waits for; empty also if there is none.
  std::vector<int> awaited() const;
  // How far the step's local operation is: phase, sequence number, tickets done. Nothing if none is under way.
  using LocalPosition = std::array<std::uint64_t, 3>;
  std::optional<LocalPosition> local_position() const;
  // A number that changes when the oldest collective comes further.
  std::uint64_t mark() const;

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
  // What the ranks have asked for in the last collective that has ended, and its number.
  std::vector<Call> last_calls_;
  std::uint64_t last_met_ = 0;
  Status failure_;
};

}  // namespace lockstep::comm
