// Plan: how the work of a collective is cut into tickets, seen the same way by every rank.
//
// Every ticket has an owner. Of a reduction, each rank owns a contiguous slice; of a movement, a rank owns
// those of what it receives. A ticket is at most kTicketBytes. Any rank may do any ticket whose output is shared; a
// private output can only be filled by its owner. Pure functions of the posts; nothing here waits or writes control
// memory.
#pragma once

#include "collective.h"
#include "group_memory.h"

namespace lockstep::comm {

struct Outputs {
  const Request* own = nullptr;  // where those of this rank are, when others cannot see them
  bool large = false;            // Plan::large_results()
};

class Plan {
 public:
  // Once all ranks have posted.
  Plan(const GroupMemory& memory, std::uint64_t sequence);

  // Ok when all ranks asked for the same; else who asked for what. The same text on every rank.
  Status agreement() const;
  // If not, the ranks are out of step from here on.
  bool lists_agree() const;

  // Maps what this process has not seen yet of the memory that the ranks have named; before anything else is done
  // there.
  Status reach() const;

  // All inputs are in control memory: each rank makes its own result, and waits for nobody's work.
  bool inlined() const { return inlined_; }
  // What a rank knows beforehand to be inlined by all.
  static bool is_one_shot(Kind kind, std::size_t bytes) {
    return (kind == Kind::kAllReduce || kind == Kind::kReduce) && bytes <= Communicator::kInlineBytes;
  }

  // The same of results of `total` bytes that are only fetched.
  static bool is_fetched(Kind kind, std::size_t total) {
    const bool follows = kind == Kind::kBroadcast || kind == Kind::kAllGather || kind == Kind::kGather;
    return follows && total <= Communicator::kInlineBytes;
  }

  // Whether results are better written past the caches (copy.h).
  bool large_results() const;

  std::uint64_t tickets(int owner) const;
  // Whether ranks other than `owner` may do its tickets.
  bool shared(int owner) const;
  void execute(int owner, std::uint64_t ticket, const Outputs& outputs, Scratch& scratch) const;

  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  // What `from` sends to `to`; nowhere if `to` cannot see it, empty when nothing passes between them.
  Part sent(int from, int to) const;
  // Its size alone, as addresses may yet change.
  std::size_t sent_bytes(int from, int to) const;

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  const Post& own() const { return post(memory_.rank()); }
  const Post& post(int rank) const { return memory_.post(rank, sequence_); }
  std::size_t total_bytes() const { return own().count * size_of(own().type); }
  std::size_t ticket_bytes() const;
  bool reduces() const { return kind_ == Kind::kAllReduce || kind_ == Kind::kReduce || kind_ == Kind::kReduceScatter; }

  // Where `to` wants what comes from `from`.
  Part wanted(int to, int from) const;
  std::size_t wanted_bytes(int to, int from) const;
  // Of the one input or output of `post`.
  std::size_t input_bytes(const Post& post) const;
  std::size_t output_bytes(const Post& post) const;
  Part wanted_at(int to, int from, const Outputs& outputs) const;
  // Of kAllReduce and kReduce: among how many ranks the elements are shared out, and which is the first of them.
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
