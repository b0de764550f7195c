// Communicator: the collective operations and messages of one group of ranks. They go over shared memory within a
// machine, and over UCX between machines. Which ranks share a machine is found out (CommunicatorOptions::machine).
//
// Every rank of the group calls the same operations in the same order; docs/collectives.md explains how they work and
// what they cost. Buffers that live in the communicator's SharedArena are read and written in place by all ranks; any
// other buffer is copied in and out in chunks that stay in cache.
//
// Blocking or not: `run(args)` returns when this rank's buffers hold the result and may be reused. `start(args)`
// returns at once with an Operation; there is no progress thread. Once every rank has started an operation on buffers
// of the arena, any rank that waits for it (or starts another one) may do the work for all. So a rank that is busy
// elsewhere delays no other. Messages, and data between machines, progress while their rank waits or tests in any
// group. Other ranks see at most kMaxPending collectives of a rank at once; later ones wait for their turn in a queue.
//
// Errors: a disagreement between ranks (kMismatch: kinds, counts, types, roots) is reported on every rank and names the
// ranks. No data has moved, and the group stays usable. A dead peer (kPeerFailed), a timeout (kTimeout, which names the
// ranks that never called) and abort() break the group: all operations of every rank, now and later, fail with the
// first error. Buffers then hold unspecified values.
//
// Threads: all methods may be called from several threads. Operations are ordered as their calls get the lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"
#include "lockstep/reduce/types.h"
#include "lockstep/shm/shared_arena.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

// `list` in the structs below: a caller may make several collectives as one list (PyTorch's coalesced calls). `list` is
// the length of the list that this collective belongs to, at most 65535. If the lists of two ranks differ in length,
// the ranks no longer make the same sequence of calls, so the group breaks (kMismatch).
//
// Sizes are elements of `type` unless they say bytes. Pointers may be null where the size is zero. An output may be the
// input itself (in place); any other overlap is undefined.

struct AllReduce {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // kPremulSum: multiplies every input
  int list = 1;         // see above
};

// Only `root` gets the result. The inputs of other ranks stay as they are, and their outputs are not used.
struct Reduce {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  int root = 0;
};

// Operations that only move data have a type too. It must be the same on every rank, and has no other effect.
struct Broadcast {
  void* data = nullptr;
  std::size_t bytes = 0;
  int root = 0;
  DataType type = DataType::kByte;
};

// One piece of memory. A rank that neither sends nor receives it leaves it empty.
struct ConstPiece {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct Piece {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// outputs[r] gets rank r's input; its size must be that of rank r's input.
struct AllGather {
  ConstPiece input;
  std::vector<Piece> outputs;
  DataType type = DataType::kByte;
  int list = 1;
};
struct Gather {
  ConstPiece input;
  std::vector<Piece> outputs;  // on root only
  int root = 0;
  DataType type = DataType::kByte;
};
struct Scatter {
  std::vector<ConstPiece> inputs;  // on root only; inputs[r] goes to rank r
  Piece output;
  int root = 0;
  DataType type = DataType::kByte;
};
// inputs[r] is this rank's contribution to rank r's output.
struct ReduceScatter {
  std::vector<ConstPiece> inputs;
  Piece output;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  int list = 1;
};
// inputs[r] goes to rank r; outputs[r] comes from rank r.
struct AllToAll {
  std::vector<ConstPiece> inputs;
  std::vector<Piece> outputs;
  DataType type = DataType::kByte;
};
struct Barrier {};
// A rank starts this in place of a collective in which it cannot take part. The others get kMismatch at once, with this
// rank and its reason (up to kReasonBytes of it), and the group stays usable.
struct Refusal {
  static constexpr std::size_t kReasonBytes = 216;
  std::string_view reason;
  int list = 1;
};

// Point-to-point. Messages between two ranks with equal tags arrive in the order in which they were sent.
inline constexpr int kAnySource = -1;
struct Send {
  ConstPiece data;
  int destination = 0;
  int tag = 0;  // not negative
};
struct Receive {
  Piece data;  // a message of another size is an error (kMismatch) on the receiver
  int source = kAnySource;
  int tag = 0;
};

// A started operation. Copies share it. If every copy is dropped, the operation still completes during later calls. Its
// buffers must stay valid until then; `keep_alive` of start() is held for this.
class Operation {
 public:
  class State;

  Operation() = default;
  explicit Operation(std::shared_ptr<State> state);

  // Blocks until done or failed. kTimeout breaks the group, as above.
  Status wait(Deadline deadline);
  // Makes some progress without waiting. Returns whether the operation is done or has failed; wait() then says which.
  bool is_completed();
  // Returns whether the operation is done, or known to have failed. Makes no progress.
  bool is_over() const;
  // For receives: the rank that sent the message; -1 before it has arrived.
  int source() const;
  // The sequence number of the collective in its group, 1 for the first; 0 for send and receive.
  std::uint64_t sequence() const;

 private:
  std::shared_ptr<State> state_;
};

struct CommunicatorOptions {
  int rank = 0;
  int group_size = 1;
  std::string name = "world";  // the group's name in errors; unique among the groups that share a store
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // for joining
  // Where this rank allocates memory that others can see. Ranks of one process may share an arena. Null: a new one.
  std::shared_ptr<SharedArena> arena;
  // Ranks with equal text here share memory, others use the network. Empty: LOCKSTEP_MACHINE. If that is not set
  // either, ranks of one user, on one booted system and in one network namespace, share memory. Set it in tests, or if
  // ranks must not share memory.
  std::string machine = {};
  // The world's number of each rank of this group; errors name ranks by this number. Empty: the numbers are the same.
  std::vector<int> world_ranks = {};
  // The records of all ranks, by rank of this group, if they are known already (Rendezvous::members); `machine` is then
  // not used. Empty: the ranks exchange their records now. Either all ranks of a group give records, or none does.
  std::vector<Member> members = {};
  // Groups of this process that have the same family break together. 0: the group gets a family of its own. To join
  // another group's family, give that group's Communicator::family(), on all ranks.
  std::uint64_t family = 0;
};

class Group;
struct RequestView;

// In a fork of the rank's process (fork.h), calls fail with kUnsupported. Neither these calls nor the end of the fork
// have any effect on the group.
class Communicator {
 public:
  static constexpr int kMaxPending = 32;
  // Inputs up to this size always travel inside the control memory, in one step.
  static constexpr std::size_t kInlineBytes = 1024;

  // Collective over the group's ranks: all of them call it, with a store that all can reach. Blocks until all have
  // joined.
  static Result<std::unique_ptr<Communicator>> create(const std::shared_ptr<Store>& store,
                                                      const CommunicatorOptions& options);

  // Tells the others that this rank leaves; ranks that still wait for it get an error. Gives operations under way up to
  // 0.2 s to finish; unfinished operations then end with kAborted. If another rank could still use the buffers of such
  // an operation, the group breaks for all ranks. No call may be in progress on this object.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int group_size() const;
  const std::string& name() const;
  SharedArena& arena() const;
  std::uint64_t family() const;
  // Whether all ranks share memory: they are on one machine.
  bool shares_memory() const;
  // A number that all ranks of this group have and no other group has; 0: the system had no random bytes.
  std::uint64_t identity() const;

  // Args: AllReduce, Reduce, Broadcast, AllGather, Gather, Scatter, ReduceScatter, AllToAll, Barrier, Send, Receive.
  template <typename Args>
  Status run(const Args& args, Deadline deadline);

  using KeepAlive = std::shared_ptr<void>;
  // Args: as for run(), and Refusal. If more than kMaxPending collectives of this rank are under way, start() waits for
  // other ranks for at most a millisecond. Holds `keep_alive` until the operation is over.
  template <typename Args>
  Result<Operation> start(const Args& args, KeepAlive keep_alive = nullptr);

  // Makes progress with all operations under way, without waiting. Cheap if there is nothing to do.
  void progress();

  // Breaks the group for every rank, with this reason; safe from any thread, also while others wait.
  void abort(const std::string& reason);
  // Call it before this rank leaves the group to form it anew. Ranks that then miss this rank get kAborted, which says
  // why.
  void will_be_formed_anew();
  // The error that broke the group; ok while the group works. Once this or any other call has returned the error, the
  // process's other groups know it too. A group that has the dead process as a member is then broken. In any other
  // group, if this rank leaves, the other ranks' errors name this error as the cause.
  Status health() const;
  // Whether this process is in a broken group, and has not left that group.
  static bool any_broken();

  // For all groups of this process: how long a rank waits for others before it logs a warning, once for each wait,
  // which says where every rank is. It goes on waiting until its deadline. Zero: never.
  static constexpr std::chrono::milliseconds kDefaultPatience = std::chrono::seconds(30);
  static void set_patience(std::chrono::milliseconds patience);

  // How many collectives this rank has started so far.
  std::uint64_t sequence() const;

  // Ok while none of these ranks has died or left, as far as this rank can see without waiting; else kPeerFailed, which
  // names the rank. The check does not break the group. A death on another machine is seen only if the group works and
  // this rank has a connection to the dead rank.
  Status check_present(const std::vector<int>& ranks) const;

  // Ranks that have not called collective `sequence`, one of this rank's last kMaxPending.
  std::vector<int> absent(std::uint64_t sequence) const;

 private:
  explicit Communicator(std::shared_ptr<Group> group);
  // kUnsupported in a fork of the rank.
  Status check_process() const;

  const Origin origin_;
  const std::shared_ptr<Group> group_;
};

}  // namespace lockstep::comm
