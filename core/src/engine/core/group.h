// What is behind a Communicator (Group) and behind an Operation (Operation::State).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/call_place.h"
#include "engine/core/failure.h"
#include "engine/core/request.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/shm/shared_arena.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

class Group;

// A send or receive that this rank has called.
struct Transfer {
  bool is_send = false;
  int peer = kAnySource;
  std::int64_t tag = 0;
  ConstPiece source;  // of a send
  Piece target;       // of a receive
  CallPlace place;    // from where it was called
  bool over = false;
  Status status;
  int from = -1;                          // of a receive that is over: the sender
  Operation::State* operation = nullptr;  // that it belongs to; null: a blocking call's
};

// What a wait remembers from one check for failures to the next.
struct Watch {
  using Time = std::chrono::steady_clock::time_point;
  // The last call of another rank, and since when it has been the last one and over.
  struct LastCall {
    std::uint64_t call = 0;
    bool over = false;
    Time since;
  };

  std::uint64_t progress = 0;
  Time progressed = std::chrono::steady_clock::now();
  Time checked = progressed;
  Time started = progressed;
  std::vector<LastCall> last_calls = {};  // by rank; empty until the first check
  // Of a group that spans machines: since when its oldest collective stands where it is, and what FailureWatch has
  // asked the others for this wait.
  Time moved = progressed;
  bool warns = false;  // the wait has lost its patience, and its warning waits for the answers
  Time asked_to_warn;  // no time: not yet
  Time asked_to_end;
  // long_wait.h
  bool warned = false;
  std::string warning;                          // to log once the group's lock is free
  bool shows = true;                            // off: the caller only tests
  std::shared_ptr<const void> shown = nullptr;  // while it lives, other groups show what this rank waits for
};

// A started operation: a transfer, or a collective, which each engine adds in a derived class.
class Operation::State {
 public:
  explicit State(std::shared_ptr<Group> its_group) : group(std::move(its_group)) {}
  virtual ~State() = default;

  virtual bool is_over() const { return over.load(std::memory_order_acquire); }
  virtual std::uint64_t sequence() const { return 0; }  // of a collective

  const Origin origin;
  const std::shared_ptr<Group> group;
  Transfer transfer;
  Communicator::KeepAlive keep_alive;
  Watch watch;  // used by test(), under the group's lock
  std::atomic<bool> over{false};
  Status status;  // valid once over
};

// ArenaBlock: memory of an arena for one use, such as the staging of an operation; freed with this object.
class ArenaBlock {
 public:
  ArenaBlock() = default;
  ArenaBlock(ArenaBlock&& other) noexcept
      : arena_(std::move(other.arena_)), data_(std::exchange(other.data_, nullptr)) {}
  ArenaBlock& operator=(ArenaBlock&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~ArenaBlock() {
    if (data_ != nullptr) arena_->deallocate(data_);
  }
  Status allocate(const std::shared_ptr<SharedArena>& arena, std::size_t bytes,
                  SharedArena::Pages pages = SharedArena::Pages::kAtOnce) {
    LOCKSTEP_ASSIGN_OR_RETURN(data_, arena->allocate(bytes, pages));
    arena_ = arena;
    return {};
  }
  std::byte* data() const { return data_; }
  // Does not free the memory, because another rank may still use it.
  void leak() { data_ = nullptr; }

 private:
  std::shared_ptr<SharedArena> arena_;
  std::byte* data_ = nullptr;
};

// Group: the implementation behind a Communicator. Two engines derive from it: engine/local, for the ranks of one
// machine, and engine/hierarchical, for the ranks of several. Communicator::create picks one; no other code asks which.
//
// There is no progress thread. Operations progress while their rank is inside a call of any group (group_registry.h).
class Group {
 public:
  using KeepAlive = Communicator::KeepAlive;

  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_rank() const { return roster_.number(rank_); }
  int group_size() const { return group_size_; }
  const std::string& name() const { return name_; }
  const Roster& roster() const { return roster_; }
  SharedArena& arena() const { return *arena_; }
  std::uint64_t family() const { return family_; }
  // Collectives started so far.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  // The caller has validated the request.
  virtual Status run(const RequestView& request, Deadline deadline) = 0;
  virtual Result<std::shared_ptr<Operation::State>> start(Request request, KeepAlive keep_alive) = 0;
  virtual Status run(Transfer transfer, Deadline deadline) = 0;
  virtual Result<std::shared_ptr<Operation::State>> start(Transfer transfer, KeepAlive keep_alive) = 0;

  // `state` is an operation of this group.
  virtual Status wait(Operation::State& state, Deadline deadline) = 0;
  // Makes some progress. Whether the operation is then over, or the group broken.
  virtual bool test(Operation::State& state) = 0;

  // Moves what is under way, without waiting for other ranks.
  virtual void progress() = 0;
  // The same, and takes in messages that have arrived. Does nothing while another thread is inside the group. Whether
  // anything moved.
  virtual bool try_progress() = 0;

  // Breaks the group on every rank. If the group is broken already, the first reason stays.
  virtual void abort(const std::string& reason) = 0;
  // Why the group broke; ok while it works.
  virtual Status health() const = 0;
  virtual Failure failure() const = 0;
  // Another group of this process broke. If it is of the same family, or a process that died there is a member here,
  // this group breaks too.
  // Otherwise the failure becomes this rank's known cause, which the other members read if they miss this rank.
  virtual void hear(const Failure& failure) = 0;
  // Shows the other members what this rank waits for in another group, or which message; empty: nothing. Takes no lock.
  virtual void show_wait(const std::string& what) = 0;
  // Ok while none of these ranks has died or left, as far as this rank can see; else kPeerFailed, with the first cause.
  virtual Status check_present(const std::vector<int>& ranks) = 0;
  // Whether all ranks share memory: they are on one machine.
  virtual bool shares_memory() const = 0;
  // See Communicator.
  virtual std::uint64_t identity() const = 0;
  // Ranks that have not called this collective, as far as this rank knows.
  virtual std::vector<int> absent(std::uint64_t sequence) const = 0;

  // This rank leaves. It waits a moment for operations that others are about to finish, then tells them.
  virtual void close() = 0;

  // Whether this rank has started operations that are not over.
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  // Whether this is the first call: each failure is told to other groups once.
  bool begin_telling() { return !failure_told_.exchange(true, std::memory_order_relaxed); }

 protected:
  explicit Group(const CommunicatorOptions& options)
      : rank_(options.rank),
        group_size_(options.group_size),
        name_(options.name),
        roster_(options.world_ranks),
        arena_(options.arena),
        family_(options.family != 0 ? options.family : new_family()) {}

  GroupNames names() const { return {name_, roster_}; }
  // "rank 2 of the world": how errors name this rank.
  std::string me() const { return roster_.name(rank_); }
  Status destroyed() const { return {ErrorCode::kAborted, "group '" + name_ + "' has been destroyed on this rank"}; }
  // The caller holds the engine's lock, which orders this rank's collectives.
  std::uint64_t next_sequence() {
    const std::uint64_t next = sequence() + 1;
    sequence_.store(next, std::memory_order_relaxed);
    return next;
  }
  void set_busy(bool busy) { busy_.store(busy, std::memory_order_relaxed); }

  const int rank_;
  const int group_size_;
  const std::string name_;
  const Roster roster_;
  std::shared_ptr<SharedArena> arena_;  // null until the first local group of a hierarchical one has made it

 private:
  static std::uint64_t new_family() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  const std::uint64_t family_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> failure_told_{false};
};

}  // namespace lockstep::comm
