// The words of errors that both engines report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/group.h"
#include "engine/core/request.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

// "all_reduce of 10 float32 (sum)": what the ranks must agree on.
std::string describe(const RequestTerms& terms, const Roster& ranks);

// The terms that a post or a call record holds.
template <typename Record>
RequestTerms terms_of(const Record& record) {
  RequestTerms terms;
  terms.kind = record.kind;
  terms.type = record.type;
  terms.op = record.op;
  terms.factor = record.factor;
  terms.root = record.root;
  terms.list = record.list;
  terms.count = record.count;
  return terms;
}

// "could not take part: ...", from the input of a kRefusal.
std::string describe_refusal(const std::byte* reason, std::size_t bytes);

// "all_reduce #3 of group 'world'".
std::string describe(Kind kind, std::uint64_t sequence, const std::string& group);

// "send to rank 1 with tag 2 in group 'world'".
std::string describe(const Transfer& transfer, const GroupNames& names);

// "send to rank 1 with tag 2 in group 'world' of rank 0 timed out: no matching recv came". `still`: ranks that stand
// still, in words.
std::string describe_timeout(const Transfer& transfer, const GroupNames& names, int rank,
                             const std::vector<std::string>& still);

// Which ranks hold up a collective, in words: "1 (last call barrier #2, stopped by a signal)".
struct HeldUpBy {
  std::vector<std::string> absent;  // have not called it
  std::vector<std::string> still;   // have called it, as far as is known, and stand still
  std::string inside;               // if there are none of these: what is known of those that have called it
};
// "barrier #3 of group 'world' timed out on rank 0: rank(s) 1 (...) never called it". `on` is the rank that gives up.
std::string describe_timeout(const std::string& collective, const std::string& on, const HeldUpBy& ranks,
                             const Roster& roster);

// "; rank(s) 1 (stopped by a signal) stand still", or nothing if there are none.
std::string stand_still(const std::vector<std::string>& ranks, const Roster& roster);

// kMismatch: which ranks made which calls. `calls` has these in words, by rank.
Status disagreement(const GroupNames& names, std::uint64_t sequence, const std::vector<std::string>& calls);

// kMismatch: `to` expects another number of bytes than `from` sends.
struct SizeMismatch {
  int from;
  int to;
  std::uint64_t sent;
  std::uint64_t wanted;
};
Status disagreement(const GroupNames& names, std::uint64_t sequence, Kind kind, const SizeMismatch& sizes);

// What the system says of a process that others wait for, which tells a frozen process from one that computes:
// "stopped by a signal", "dead" and the like; empty if the process runs, sleeps, or cannot be seen. `process` is a
// pidfd. This reads files of /proc: use it for error texts, not inside waits.
std::string condition_of(const Fd& process);

}  // namespace lockstep::comm
