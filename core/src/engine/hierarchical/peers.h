// What a rank of a group that spans machines knows of the others: CallBoard has what they have called, Peers how they
// are.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "call.h"
#include "engine/core/group.h"
#include "engine/local/local_group.h"
#include "group_context.h"

namespace lockstep::comm {

// CallBoard: memory in which the ranks of a machine show one another what the ranks of the group have called. Each rank
// of the machine has a row, with the last call (call_word) of every rank of the group, as far as it knows. It writes no
// other row. Thread-safe.
class CallBoard {
 public:
  struct Entry {
    std::atomic<std::uint64_t> call;  // call_word()
    // From where it was called, if this is that call's: set to 0 while the texts are written.
    std::atomic<std::uint64_t> has_place_of;
    std::array<std::atomic<std::uint64_t>, sizeof(SentPlace) / sizeof(std::uint64_t)> place;
    std::atomic<std::int64_t> gave_up;  // when it said last that its timeout is over, by this machine's clock; 0: never
  };
  using Row = Entry*;

  CallBoard() = default;
  // `own`: which of the rows is that of this rank.
  CallBoard(std::vector<Row> rows, int own) : rows_(std::move(rows)), own_(own) {}
  // Makes rows for `group_size` ranks. Collective over the ranks of the machine.
  static Result<CallBoard> share(LocalGroup& local, int group_size, Deadline deadline);

  void note(int rank, std::uint64_t call) const;
  // The same, and from where. Not while another thread of this rank does it.
  void note(int rank, std::uint64_t call, const SentPlace& place) const;
  // The latest call of `rank` that any rank of this machine knows; 0: none.
  std::uint64_t latest(int rank) const;
  bool has_called(int rank, std::uint64_t sequence) const { return sequence_of(latest(rank)) >= sequence; }
  // From where `rank` has made its latest call, as far as any rank of this machine knows.
  std::optional<SentPlace> place(int rank) const;

  // `rank` says that its timeout is over, and that it breaks the group soon.
  void note_giving_up(int rank) const;
  // Whether any rank of this machine has heard that from `rank` within `time`.
  bool gives_up(int rank, std::chrono::steady_clock::duration time) const;

 private:
  ArenaBlock memory_;  // of this rank's row
  std::vector<Row> rows_;
  int own_ = 0;
};

// Peers: what this rank knows of the state of each rank of its group. Ranks of its machine show it in shared memory. Of
// the others it knows what their connections and their control messages tell. Not thread-safe: the group's lock is held
// around every call.
class Peers {
 public:
  Peers(const GroupContext& context, const LocalGroups& locals)
      : context_(context), local_(locals.before()), told_(context.size()) {}

  // What a rank of another machine has told of itself; its condition is in the news of any rank of its machine.
  struct Told {
    bool greeted = false;
    bool left = false;
    bool answered = false;  // since this rank last asked
    std::string cause;      // its known cause
    std::string condition;  // since this rank last asked
    std::string waits_for;
  };
  Told& told(int rank) { return told_[rank]; }
  void forget_answers();

  bool has_left(int rank) const;
  // It has left, or its process has ended, or the connection to it has broken.
  bool is_gone(int rank) const;
  // For error texts: how a rank that is gone went.
  const char* how_gone(int rank) const;
  std::string known_cause(int rank) const;
  // Neighbours whose hello has not come.
  std::vector<int> silent_neighbours() const;

  // Why a rank stands still, as its machine knows; empty: it runs.
  std::string condition(int rank) const;
  // The same, and "did not answer" of a neighbour that was asked in vain.
  std::string why_still(int rank) const;
  // What it waits for in another group, or which message, as its machine knows; empty: nothing.
  std::string waits_for(int rank) const;
  // "1 (on node7, stopped by a signal)" for each rank that stands still, without those already `named`.
  std::vector<std::string> who_stands_still(const std::vector<int>& named) const;

 private:
  const Peer& local_peer(int rank) const { return local_.memory().peer(context_.topology.index_of(rank)); }

  const GroupContext& context_;
  const LocalGroup& local_;
  std::vector<Told> told_;
};

}  // namespace lockstep::comm
