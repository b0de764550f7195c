// Plan: how the work of a collective is cut into tickets. Every rank computes the same plan.
//
// Every ticket has an owner. In a reduction each rank owns one contiguous slice. In an operation that only moves data,
// a rank owns the tickets of the data that it receives. A ticket is at most kTicketBytes. Any rank may do a ticket with
// a shared output; only the owner can fill a private output. All methods depend on the posts alone. They neither wait
// nor write control memory.
#pragma once

#include "collective.h"
#include "engine/core/request.h"
#include "group_memory.h"

namespace lockstep::comm {

struct Outputs {
  const Request* own = nullptr;  // this rank's request, if its outputs are private
  bool large = false;            // Plan::large_results()
};

class Plan {
 public:
  // All ranks must have posted.
  Plan(const GroupMemory& memory, std::uint64_t sequence);

  // Ok if all ranks asked for the same; else which rank asked for what, with the same text on every rank.
  Status agreement() const;
  // If they differ, the ranks no longer make the same sequence of calls.
  bool lists_agree() const;

  // Maps those segments of the ranks' buffers that this process has not mapped yet. Call it before any other use of the
  // buffers.
  Status reach() const;

  // All inputs are in control memory: each rank makes its own result, and waits for no other rank's work.
  bool inlined() const { return inlined_; }
  // Whether a rank knows beforehand that all ranks inline their inputs.
  static bool is_one_shot(Kind kind, std::size_t bytes) {
    return (kind == Kind::kAllReduce || kind == Kind::kReduce) && bytes <= Communicator::kInlineBytes;
  }

  // The same for operations without reduction, whose results have `total` bytes.
  static bool is_fetched(Kind kind, std::size_t total) {
    const bool follows = kind == Kind::kBroadcast || kind == Kind::kAllGather || kind == Kind::kGather;
    return follows && total <= Communicator::kInlineBytes;
  }

  // Whether results should be written past the caches (copy.h).
  bool large_results() const;

  std::uint64_t tickets(int owner) const;
  // Whether ranks other than `owner` may do its tickets.
  bool shared(int owner) const;
  void execute(int owner, std::uint64_t ticket, const Outputs& outputs, Scratch& scratch) const;

  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  // What `from` sends to `to`. Null data: `to` cannot see it. No bytes: nothing passes between them.
  Part sent(int from, int to) const;
  // Only its size, which is valid before late staging has set the addresses.
  std::size_t sent_bytes(int from, int to) const;

 private:
  const Post& own() const { return post(memory_.rank()); }
  const Post& post(int rank) const { return memory_.post(rank, sequence_); }
  std::size_t total_bytes() const { return own().count * size_of(own().type); }
  std::size_t ticket_bytes() const;
  bool reduces() const { return kind_ == Kind::kAllReduce || kind_ == Kind::kReduce || kind_ == Kind::kReduceScatter; }

  // Where `to` wants the data that comes from `from`.
  Part wanted(int to, int from) const;
  std::size_t wanted_bytes(int to, int from) const;
  // The size of the single input or output of `post`.
  std::size_t input_bytes(const Post& post) const;
  std::size_t output_bytes(const Post& post) const;
  Part wanted_at(int to, int from, const Outputs& outputs) const;
  // For kAllReduce and kReduce: how many ranks share the elements, and the first of these ranks.
  int workers(int& first) const;
  std::size_t ticket_elements(int workers) const;
  Status check_sizes() const;

  void execute_reduce(Range range, const Outputs& outputs, Scratch& scratch) const;
  void execute_reduce_scatter(int owner, std::uint64_t ticket, const Outputs& outputs, Scratch& scratch) const;
  void combine(Scratch& scratch, std::size_t count, bool past_caches) const;
  void execute_move(int owner, std::uint64_t ticket, const Outputs& outputs) const;

  const GroupMemory& memory_;
  std::uint64_t sequence_;
  Kind kind_;
  bool inlined_ = true;
};

}  // namespace lockstep::comm
