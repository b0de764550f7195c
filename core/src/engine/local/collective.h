// Collective: one collective operation under way on this rank, from its post to its end. Not thread-safe: the group's
// lock is held around every call.
//
// number() says which collective of the group it is. post() publishes this rank's request. Then progress() is called
// until it returns true. Once all ranks have posted, each checks that they agree. The work is cut into tickets, and any
// rank that is inside a call does them (see docs/collectives.md).
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/error_text.h"
#include "engine/core/group.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

// The addresses that one ticket reads and writes. The vectors are kept between tickets, so that no ticket allocates.
struct Scratch {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// How the caller of an operation goes on.
enum class Caller {
  kGoesOn,  // does something else; other ranks may have to do this rank's work
  kTests,   // calls progress() until the operation is over, and may do something else in between
  kBlocks,  // calls progress() and nothing else, therefore it can stream
};

class Collective {
 public:
  Collective(const GroupMemory& memory, const Waiting& waiting, Request request, Caller caller)
      : memory_(memory), waiting_(waiting), request_(std::move(request)), caller_(caller) {}

  // Call this first.
  void number(std::uint64_t sequence) { sequence_ = sequence; }
  Status post();
  // Continues an operation that a SmallCall has posted.
  void adopt_small();

  // Does what can be done now: checks the posts, stages, runs this rank's own tickets and, with `help`, those of
  // others. True once the operation is over; status() is then its result.
  bool progress(bool help, Scratch& scratch);

  // All ranks block, and some have private buffers. The caller then streams (streams.h) and calls finish().
  bool wants_stream() const { return phase_ == Phase::kStream; }
  void finish(Status status);

  // Whether the operation, which does not stream, can never end because of `rank`, whose process has ended after its
  // post: it has died with a ticket, or before it did what nobody else can do. False while a rank that lives still does
  // tickets. Needs no lock.
  bool is_held_up_by(int rank) const;

  // After an abort: waits until no rank that lives is inside a ticket of this operation, nor will be. Then the caller
  // may use its buffers. False: some rank is stuck in a ticket, and may still read and write the buffers. Needs no
  // lock.
  bool quiesce(Deadline deadline) const;
  // Call this after quiesce() has returned false: what the stuck rank still writes then does not reach the caller's
  // buffers, nor staging that is used again.
  void abandon();

  bool posted() const { return phase_ != Phase::kNumbered; }
  bool over() const { return phase_ == Phase::kOver; }
  const Status& status() const { return status_; }
  std::uint64_t sequence() const { return sequence_; }
  const Request& request() const { return request_; }
  // "all_reduce #3 of group 'world'".
  std::string describe() const { return comm::describe(request_.kind, sequence_, memory_.name()); }
  // The first rank that has not posted, or -1.
  int missing() const { return missing_.load(std::memory_order_relaxed); }
  // How many tickets all ranks have done so far. It tells whether the operation still progresses.
  std::uint64_t tickets_done() const;

 private:
  enum class Phase { kNumbered, kPosted, kStaging, kRunning, kStream, kOver };

  // Parts of post().
  bool in_arena(const void* data, std::size_t bytes) const {
    return bytes == 0 || memory_.arena().contains(data, bytes);
  }
  bool inputs_shared() const;
  bool may_stream() const;
  bool reduces_in_place() const { return request_.kind == Kind::kAllReduce; }
  Status publish(Post& post);
  void publish_input_sizes(Post& post);
  Status publish_inputs(Post& post);
  Status publish_outputs(Post& post);
  Status publish_in_place(Post& post);
  bool outputs_shared() const;
  void copy_outputs();

  // Parts of progress().
  bool everyone_posted();
  bool everyone_ready();
  Status stage_late();
  bool break_group(const Status& why);
  void start_running();
  void run_tickets(bool help, Scratch& scratch);
  void work(bool help, Scratch& scratch);
  bool somebody_works() const;

  const GroupMemory& memory_;
  const Waiting& waiting_;
  Request request_;
  Caller caller_;
  std::uint64_t sequence_ = 0;
  Phase phase_ = Phase::kNumbered;
  Status status_;
  std::atomic<int> missing_{-1};
  int checked_ = 0;  // all ranks below this one have posted
  int ready_ = 0;    // all ranks below this one are ready

  ArenaBlock input_staging_;
  ArenaBlock output_staging_;
  bool private_output_ = false;
  bool needs_all_ = false;  // others use memory of this rank, which must wait until they have finished
  bool large_results_ = false;
  std::uint64_t total_tickets_ = 0;
  std::uint64_t my_done_ = 0;
  bool all_claimed_ = false;  // this rank only waits for the ranks that have claimed tickets
};

// LocalOperation: an operation of a LocalGroup that its caller has started.
struct LocalOperation final : Operation::State {
  using Operation::State::State;
  std::uint64_t sequence() const override { return collective ? collective->sequence() : 0; }

  // The operation is over: its caller gets the result and its buffers.
  void finish(Status result) {
    status = std::move(result);
    keep_alive.reset();
    over.store(true, std::memory_order_release);
  }

  std::unique_ptr<Collective> collective;                      // null: a transfer
  std::list<std::shared_ptr<LocalOperation>>::iterator place;  // of a transfer, in Mailbox::started()
};

}  // namespace lockstep::comm
