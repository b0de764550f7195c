// Group: what stands behind a Communicator. Owns the memory of the group, gives collectives their numbers, and drives
// everything that is under way. docs/collectives.md describes the whole.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "collective.h"
#include "copy_ways.h"
#include "engine/core/progress.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"
#include "mailbox.h"
#include "move_stream.h"
#include "small_call.h"
#include "stream.h"
#include "waiting.h"

namespace lockstep::comm {

class WideGroup;
struct WideOperation;

// What checks of an operation remember of the ones before.
struct Watch {
  std::uint64_t progress = 0;
  std::chrono::steady_clock::time_point progressed = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point checked = progressed;
};

// A started operation: a collective or a transfer, the other is unused.
class Operation::State {
 public:
  const Origin origin;
  std::shared_ptr<Communicator::Impl> group;       // or
  std::shared_ptr<WideGroup> wide;                 // where the ranks are on several machines
  std::unique_ptr<Collective> collective;          // of `group`
  std::shared_ptr<WideOperation> wide_collective;  // of `wide`
  Transfer transfer;
  Communicator::KeepAlive keep_alive;
  Watch watch;  // of those who poll; the group's lock is held around every use
  std::atomic<bool> over{false};
  Status status;  // valid once over
};

class Communicator::Impl final : public Drivable, public std::enable_shared_from_this<Communicator::Impl> {
 public:
  Impl(int rank, const CommunicatorOptions& options, HandOver parts);

  Status run(const RequestView& request, Deadline deadline);
  // `admission` as in Communicator::start().
  Result<Operation> start(Request request, KeepAlive keep_alive, std::optional<Deadline> admission);
  // For a WideGroup, which drives what it blocks on among other things and looks for deaths by itself.
  Result<std::shared_ptr<Operation::State>> launch(Request request, KeepAlive keep_alive, Conduct conduct,
                                                   Deadline admission);
  Result<std::shared_ptr<Operation::State>> launch(Transfer transfer, KeepAlive keep_alive);
  // Whether it is over, or the group broken, after driving what is under way.
  bool try_finish(Operation::State& state);
  // Takes in what others have sent.
  void empty_rings();
  // Receives a message that has arrived; false when there is none that matches.
  bool try_receive(Transfer& transfer);
  Status run(Transfer transfer, Deadline deadline);
  Result<Operation> start(Transfer transfer, KeepAlive keep_alive);
  Status wait(Operation::State& state, Deadline deadline);
  bool poll(Operation::State& state);
  void poke();
  bool nudge() override;
  void abort(const std::string& reason) {
    waiting_.abort(ErrorCode::kAborted, caused(waiting_.last_words(memory_.rank()), reason));
  }
  Status health() const { return waiting_.aborted() ? waiting_.abort_status() : Status(); }
  Failure failure() const override;
  void hear(const Failure& failure) override;
  void close();

  const GroupMemory& memory() const { return memory_; }
  const Waiting& waiting() const { return waiting_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  // Waits until the next number may be used: its slot is free on every rank.
  Status admit(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  bool admitted() LOCKSTEP_REQUIRES(mutex_);
  std::uint64_t next_sequence() LOCKSTEP_REQUIRES(mutex_);
  Status post(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Status run_at_length(Request request, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // True: over. Else `collective` goes on with it, or is empty where it has not begun.
  bool run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective)
      LOCKSTEP_EXCLUDES(mutex_);
  Status finish(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  bool finish_at_once(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  Status finish_waiting(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Status stream(Collective& collective, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // Drives everything that is under way; with `help` also what other ranks would do later.
  void drive(bool help) LOCKSTEP_REQUIRES(mutex_);
  void reap() LOCKSTEP_REQUIRES(mutex_);
  // After a failure: the caller may use its buffers again.
  void forget(Collective& collective) LOCKSTEP_EXCLUDES(mutex_);
  Status withdraw(Operation::State& state, Status status) LOCKSTEP_EXCLUDES(mutex_);
  void look_after(Operation::State& state) LOCKSTEP_EXCLUDES(mutex_);
  void end_orphan(Operation::State& state) LOCKSTEP_EXCLUDES(mutex_);
  bool mailbox_in_use(const Transfer& transfer) LOCKSTEP_EXCLUDES(mutex_);

  // For waits: why this one cannot succeed any more, after breaking the group; ok while it may.
  Status check(const Collective& collective, bool expired, Watch& watch);
  Status check(const Transfer& transfer, bool expired) LOCKSTEP_EXCLUDES(mutex_);
  Status check_admission(bool expired);
  // Breaks the group because a rank is gone: "rank 1 (pid 7) died <when> (last call ...)".
  Status blame(int rank, const std::string& when);
  Status time_out(const Collective& collective, std::chrono::steady_clock::duration idle);
  // What errors say of ranks, when the time is over.
  std::vector<int> never_called(std::uint64_t sequence) const;
  std::string list_with_calls(const std::vector<int>& ranks) const;
  std::string cause_among(const std::vector<int>& ranks) const;
  std::string who_stands_still(const std::vector<int>& named) const;
  std::string who_is_busy(const Collective& collective) const;
  bool behind_in_stream(int rank) const;
  std::string describe(const Collective& collective) const;
  std::string describe(const Transfer& transfer) const;
  std::string last_call(int rank) const;
  std::string me() const { return memory_.roster().name(memory_.rank()); }

  const GroupMemory memory_;
  const Waiting waiting_;
  const std::chrono::nanoseconds timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<bool> stuck_{false};  // some rank has stopped inside a ticket: others are not waited for any more

  Mutex mutex_;
  std::uint64_t admitted_until_ LOCKSTEP_GUARDED_BY(mutex_) = kRing;
  std::vector<Collective*> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Operation::State>> started_ LOCKSTEP_GUARDED_BY(mutex_);
  Scratch scratch_ LOCKSTEP_GUARDED_BY(mutex_);
  Mailbox mailbox_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  CopyWays small_ways_ LOCKSTEP_GUARDED_BY(mutex_);
  bool payloads_touched_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Used by one operation at a time, in the order of their numbers.
  StagingRing ring_;
  Stream stream_;
  MoveStream move_stream_;
};

}  // namespace lockstep::comm
