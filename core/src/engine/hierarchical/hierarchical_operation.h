// A collective of a group that spans machines.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "call.h"
#include "engine/core/group.h"
#include "engine/core/request.h"
#include "group_context.h"
#include "lockstep/engine/communicator.h"
#include "step.h"

namespace lockstep::comm {

// IntegerMean: means of integers between machines. Machines exchange sums, which would overflow 8, 16 or 32 bits.
// Therefore such an operation works on copies of 64 bits.
class IntegerMean {
 public:
  static bool is_needed(const Request& request);

  // Copies the inputs. `sizes` are in bytes; they are changed to the sizes of the copies.
  IntegerMean(const Request& request, std::span<SizeEntry> sizes);

  // The same operation on the copies.
  const Request& request() const { return widened_; }
  // After the operation: converts the results to the outputs of `request`.
  void finish(const Request& request) const;

 private:
  Request widened_;
  std::vector<std::int64_t> inputs_;
  std::vector<std::int64_t> output_;
};

// HierarchicalOperation: a collective of a group that spans machines, from the meeting of its ranks to its results. It
// says which steps remain; StepQueue carries them out.
struct HierarchicalOperation {
  // Its first step is the meeting.
  HierarchicalOperation(const GroupContext& context, Request its_request, std::uint64_t its_sequence);

  // Call this when a meeting is over: decides what follows it. False: the ranks no longer make the same sequence of
  // calls, and the group must break with `status`.
  bool finish_meeting(const GroupContext& context);
  // Call this when no steps remain, or the group is broken.
  void finish(Status its_status);
  bool has_ended_steps() const { return active == 0 && steps.empty(); }
  // "all_reduce #3 of group 'world'"
  std::string describe(const GroupContext& context) const;

  Request request;
  std::uint64_t sequence;
  bool blocking = false;
  Communicator::KeepAlive keep_alive;
  Call call;                                // of this rank
  std::vector<Call> calls;                  // of all ranks, once they have met
  std::vector<SizeEntry> row;               // sizes of this rank, if they differ between ranks
  std::vector<SizeEntry> table;             // sizes of all ranks
  std::unique_ptr<IntegerMean> mean;        // if set, the steps work on its request instead of `request`
  std::deque<std::unique_ptr<Step>> steps;  // not begun
  int active = 0;                           // begun and not over
  std::size_t bytes_between = 0;            // Step::bytes() of all steps, once planned
  std::size_t bytes_done = 0;               // of the steps that are over
  bool planned = false;                     // no steps will be added
  Status status;
  std::atomic<bool> over{false};

 private:
  void plan(const GroupContext& context);
  void apply_payloads(int rank) const;
};

// The caller's handle of a collective; of a transfer, if `collective` is null.
struct HierarchicalState final : Operation::State {
  using Operation::State::State;
  bool is_over() const override {
    return collective ? collective->over.load(std::memory_order_acquire) : Operation::State::is_over();
  }
  std::uint64_t sequence() const override { return collective ? collective->sequence : 0; }
  // The argument `transfer` of wait_until_over() and FailureWatch::check(), for a wait for this operation.
  const Transfer* awaited_transfer() const { return collective ? nullptr : &transfer; }

  std::shared_ptr<HierarchicalOperation> collective;
};

}  // namespace lockstep::comm
