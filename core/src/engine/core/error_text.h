// The words of errors that both engines report.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
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

// "could not take part: ...", from the input of a kRefusal. `place`: describe_place() of its call.
std::string describe_refusal(const std::byte* reason, std::size_t bytes, const std::string& place);

// "all_reduce #3 of group 'world'".
std::string describe(Kind kind, std::uint64_t sequence, const std::string& group);

// "send to rank 1 with tag 2 in group 'world'".
std::string describe(const Transfer& transfer, const GroupNames& names);

// What is known of a rank that has not called a collective.
struct AbsentRank {
  int rank;
  std::string host;              // empty: that of the reader
  std::string last_call;         // "last call barrier #2 at src/train.cpp:41"
  std::uint64_t behind = 1;      // how many calls it has to make until it has called the collective
  std::string waits_for;         // in another group, or a message; empty: nothing that is known
  std::chrono::seconds idle{0};  // how long it has been in no operation of the group, at least; 0: not known
  std::string condition;         // why it stands still; empty: it runs
};
// "1 (last call barrier #2 at src/train.cpp:41, 3 calls behind, in no call for 12 s, stopped by a signal)".
std::string describe(const AbsentRank& absent, const Roster& roster);

// The same of each of these ranks. Of many only the first few, and then numbers: errors have room for about 1000 bytes.
std::vector<std::string> describe_absent(const std::vector<int>& ranks, const Roster& roster,
                                         const std::function<AbsentRank(int rank)>& known_of);

inline std::chrono::seconds whole_seconds_since(std::chrono::steady_clock::time_point when) {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - when);
}

// "; called by rank(s) 0, 2 at src/train.cpp:41", from describe_place() of each rank that has called. Empty if no place
// is known.
std::string describe_callers(const std::map<int, std::string>& places, const Roster& roster);

// Which ranks hold up a collective, in words: "1 (last call barrier #2, stopped by a signal)".
struct HeldUpBy {
  std::vector<std::string> absent;  // have not called it
  std::vector<std::string> still;   // have called it, as far as is known, and stand still
  std::string inside;               // if there are none of these: "but rank 3 stopped inside it", or kMovesInside
  std::string callers;              // describe_callers()
};
inline constexpr const char* kMovesInside = "and it still moves";
// "rank(s) 1 (...) never called it; called by rank(s) 0 at src/train.cpp:41".
std::string describe(const HeldUpBy& ranks, const Roster& roster);
// "barrier #3 of group 'world' timed out on rank 0: rank(s) 1 (...) never called it". `on` is the rank that gives up.
std::string describe_timeout(const std::string& collective, const std::string& on, const HeldUpBy& ranks,
                             const Roster& roster);

// "send to rank 1 with tag 2 in group 'world' of rank 0 at src/train.cpp:41".
std::string describe_of(const Transfer& transfer, const GroupNames& names, int rank);
// "no matching recv came: rank(s) 1 (...) did not call it". `peers`: the ranks that could have, as absent.
std::string describe_late(const Transfer& transfer, const GroupNames& names, const HeldUpBy& peers);
// The first, "timed out", and the second.
std::string describe_timeout(const Transfer& transfer, const GroupNames& names, int rank, const HeldUpBy& peers);

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
  std::string from_place;  // describe_place() of their calls
  std::string to_place;
};
Status disagreement(const GroupNames& names, std::uint64_t sequence, Kind kind, const SizeMismatch& sizes);

// What the system says of a process that others wait for, which tells a frozen process from one that computes:
// "stopped by a signal", "dead" and the like; empty if the process runs, sleeps, or cannot be seen. `process` is a
// pidfd. This reads files of /proc: use it for error texts, not inside waits.
std::string condition_of(const Fd& process);

}  // namespace lockstep::comm
