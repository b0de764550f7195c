// Hand-over: how the ranks of one machine get hold of one another's memory without any name in a file system.
//
// Rank 0 opens a Unix socket with a random abstract name and publishes the name with two random tokens in the group's
// store. Every other rank connects. Both check that the other runs as the same user and knows its token; then the rank
// sends the descriptors of its arena and of itself (a pidfd, so that its death can be noticed), and rank 0 answers with
// those of all ranks and of the control memory. Each rank reports whether it could take and map them all, and rank 0's
// verdict is everyone's: a group is there on every rank, or on none, with one reason (hand_over_protocol.h). The
// sockets are closed again; nothing stays behind whoever dies.
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

// One rank of the group as this process sees it.
struct Peer {
  std::shared_ptr<ArenaView> arena;
  std::shared_ptr<Fd> process;  // pidfd: readable once the process is gone
  int pid = 0;                  // in the peer's own pid namespace, for messages

  // Its process has ended, or has become another program (exec).
  bool is_gone() const;
  // Of one that is gone, for messages: "died", or what else may have been. May take a moment.
  const char* how_gone() const;
};

struct HandOver {
  std::vector<Peer> peers;           // by rank
  std::shared_ptr<Mapping> control;  // zero-filled when it arrives first
};

struct HandOverOptions {
  int rank = 0;
  int world_size = 1;
  std::string name;
  std::size_t control_bytes = 0;
  std::vector<int> world_ranks = {};  // what errors call the ranks, by rank; empty: the same

  int number(int of) const { return world_ranks.empty() ? of : world_ranks[of]; }
};

// Collective; blocks until every rank has taken part. A rank on another machine is refused, by name.
Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline);

// What that leaves in the store when all goes well.
std::string hand_over_key(const std::string& group);

}  // namespace lockstep::comm
