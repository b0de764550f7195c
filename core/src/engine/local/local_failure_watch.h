// LocalFailureWatch: finds out why a wait for ranks of this machine can no longer succeed. The error names the rank,
// the operation and its sequence number. The watch breaks nothing. It keeps no state, and is thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective.h"
#include "engine/core/error_text.h"
#include "engine/core/group.h"
#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

class LocalFailureWatch {
 public:
  LocalFailureWatch(const GroupMemory& memory, const Waiting& waiting) : memory_(memory), waiting_(waiting) {}

  // Called by waits regularly: the error with which the group must break because a rank is gone, or ok. `watch` belongs
  // to the wait. A rank that is gone may have sent a message before: take in messages before the transfer fails.
  Status check(const Collective& collective, Watch& watch) const;
  Status check(const Transfer& transfer) const;
  // Called with them: remembers in which call each rank is, and since when.
  void look(Watch& watch) const;

  // What holds up a wait, in words: "rank(s) 1 (...) never called it".
  std::string why_late(const Collective& collective, const Watch& watch) const;
  std::string why_late(const Transfer& transfer, const Watch& watch) const;
  std::string why_queue_is_late(std::uint64_t awaited, const Watch& watch) const;

  // The error of a wait whose deadline has passed. A collective that is not posted waits until all ranks are finished
  // with collective `awaited` (CollectiveQueue::awaited()).
  Status timed_out(const Collective& collective, const Watch& watch) const;
  Status timed_out_in_queue(std::uint64_t awaited, const Watch& watch) const;
  Status timed_out(const Transfer& transfer, const Watch& watch) const;

  // kPeerFailed if one of these ranks has died or left, else ok.
  Status check_present(const std::vector<int>& ranks) const;
  // The ranks that have not posted this collective.
  std::vector<int> absent(std::uint64_t sequence) const;
  // The pidfds of the other ranks that have died, and whether one of these processes is a rank that has not left.
  std::vector<const Fd*> dead() const;
  bool has_any_of(const std::vector<const Fd*>& processes) const;

 private:
  std::string me() const { return memory_.roster().name(memory_.rank()); }
  std::string gone(int rank) const;
  Status loss_of(int rank, const std::string& when) const;
  HeldUpBy held_up_by(const Collective& collective, const Watch& watch) const;
  HeldUpBy held_up_by(const Transfer& transfer, const Watch& watch) const;
  std::vector<int> peers_of(const Transfer& transfer) const;
  std::string cause_among(const std::vector<int>& ranks) const;

  const GroupMemory& memory_;
  const Waiting& waiting_;
};

}  // namespace lockstep::comm
