// CallBoard: memory in which the ranks of a machine show one another what the ranks of the group have called. Each rank
// of the machine has a row, with the last call (call_word) of every rank of the group, as far as it knows. It writes no
// other row. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/arena_block.h"
#include "engine/local/local_group.h"

namespace lockstep::comm {

class CallBoard {
 public:
  using Row = std::atomic<std::uint64_t>*;

  CallBoard() = default;
  // `own`: which of the rows is that of this rank.
  CallBoard(std::vector<Row> rows, int own) : rows_(std::move(rows)), own_(own) {}
  // Makes rows for `group_size` ranks. Collective over the ranks of the machine.
  static Result<CallBoard> share(LocalGroup& local, int group_size, Deadline deadline);

  void note(int rank, std::uint64_t call) const;
  // The latest call of `rank` that any rank of this machine knows; 0: none.
  std::uint64_t latest(int rank) const;
  bool has_called(int rank, std::uint64_t sequence) const { return sequence_of(latest(rank)) >= sequence; }
  // What error texts say of it: "last call barrier #2".
  std::string describe(int rank) const;

 private:
  ArenaBlock memory_;  // of this rank's row
  std::vector<Row> rows_;
  int own_ = 0;
};

}  // namespace lockstep::comm
