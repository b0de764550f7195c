// Hand-over: the ranks of one machine give one another access to their memory, without any name in a file system.
//
// Rank 0 opens a Unix socket with a random abstract name and publishes the name with two random tokens in the group's
// store. Every other rank connects. Both sides check that the other runs as the same user and knows its token. Then the
// rank sends the descriptors of its arena and of its process (a pidfd, which shows its death). Rank 0 answers with
// those of all ranks and of the control memory. Each rank reports whether it could map all of them, and rank 0 sends
// its verdict to all: the group exists on every rank, or on none, with one reason (hand_over_protocol.h). Then the
// sockets are closed. Nothing is left behind, whichever rank dies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena_view.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/shm/shared_arena.h"
#include "lockstep/store/store.h"
#include "mapping.h"

namespace lockstep::comm {

// One rank of the group, seen from this process.
struct Peer {
  std::shared_ptr<ArenaView> arena;
  std::shared_ptr<Fd> process;  // pidfd: readable once the process is gone
  int pid = 0;                  // in the peer's own pid namespace, for messages

  // Its process has ended, or has become another program (exec).
  bool is_gone() const;
  // How a rank that is gone ended, for messages: "died", or what else is possible. May take 0.2 s.
  const char* how_gone() const;
};

struct HandOver {
  std::vector<Peer> peers;           // by rank
  std::shared_ptr<Mapping> control;  // zero-filled at first
};

struct HandOverOptions {
  int rank = 0;
  int world_size = 1;
  std::string name;
  std::size_t control_bytes = 0;
  std::vector<int> world_ranks = {};  // the numbers of the ranks in errors; empty: as they are

  int number(int of) const { return world_ranks.empty() ? of : world_ranks[of]; }
};

// Collective; blocks until every rank has taken part. A rank on another machine is refused, by name.
Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline);

// The key that hand_over leaves in the store when it succeeds.
std::string hand_over_key(const std::string& group);

}  // namespace lockstep::comm
