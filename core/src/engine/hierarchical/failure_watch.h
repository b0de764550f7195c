// FailureWatch: finds out why a wait of a group that spans machines can no longer succeed. The error names the rank,
// its machine, the operation and its sequence number. Not thread-safe: the group's lock is held around every call.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "control_messages.h"
#include "engine/core/error_text.h"
#include "engine/core/group.h"
#include "group_context.h"
#include "peers.h"
#include "step_queue.h"

namespace lockstep::comm {

class FailureWatch {
 public:
  FailureWatch(const GroupContext& context, const Peers& peers, const CallBoard& board, const StepQueue& steps,
               ControlMessages& messages)
      : context_(context), peers_(peers), board_(board), steps_(steps), messages_(messages) {}

  // Called by waits regularly: the error with which the group must break, or ok. `transfer`: what the caller
  // waits for; null: a collective. Also sends news to the others, and asks for theirs before a wait that has `expired`
  // fails, or loses its patience: `watch` then has the warning.
  Status check(const Transfer* transfer, bool expired, Watch& watch);

  // The error for a rank that is gone.
  Status loss_of(int rank, const std::string& during) const;

 private:
  Status check_deaths(const Transfer* transfer, std::chrono::steady_clock::duration stuck);
  Status check_messages() const;
  std::vector<int> suspects(const Transfer* transfer, std::chrono::steady_clock::duration stuck, bool stands) const;
  bool local_operation_is_stuck();
  std::vector<int> awaited(const Transfer* transfer) const;
  // Asks the others what they have called, because with a short timeout no news have come yet. True once their answers
  // have had time to arrive. `asked`: when this wait has asked for this purpose. `gives_up`: see ask().
  bool has_asked(Watch::Time& asked, bool gives_up);
  // Whether a rank of an earlier machine gives up too. Then its text is the error of all ranks.
  bool earlier_machine_gives_up() const;
  void look(Watch& watch) const;
  std::string warning(const Transfer* transfer, const Watch& watch) const;
  AbsentRank where_absent(int rank, std::uint64_t sequence, const Watch& watch) const;
  std::vector<std::string> where_absent(const std::vector<int>& ranks, std::uint64_t sequence,
                                        const Watch& watch) const;
  std::vector<int> peers_of(const Transfer& transfer) const;
  HeldUpBy held_up_by(const Transfer& transfer, const Watch& watch) const;
  HeldUpBy held_up_by(const HierarchicalOperation& operation, const Watch& watch) const;
  std::string cause_among(const std::vector<int>& ranks) const;
  std::vector<int> never_called(std::uint64_t sequence) const;
  Status timed_out(const Transfer& transfer, const Watch& watch) const;
  Status timed_out(const HierarchicalOperation& operation, const Watch& watch) const;

  const GroupContext& context_;
  const Peers& peers_;
  const CallBoard& board_;
  const StepQueue& steps_;
  ControlMessages& messages_;
  // How far the oldest local operation is, and since when.
  StepQueue::LocalPosition local_at_ = {};
  std::chrono::steady_clock::time_point local_since_;
  std::chrono::steady_clock::time_point last_news_;
};

}  // namespace lockstep::comm
