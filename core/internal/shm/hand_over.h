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

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/shm/shared_arena.h"
#include "lockstep/store/store.h"
#include "shm/mapping.h"
#include "shm/peer.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

struct HandOver {
  std::vector<Peer> peers;           // by rank
  std::shared_ptr<Mapping> control;  // zero-filled at first
  std::shared_ptr<Fd> control_file;  // of `control`; only with HandOverOptions::keep_control_file
};

struct HandOverOptions {
  int rank = 0;
  int group_size = 1;
  std::string name;
  std::size_t control_bytes = 0;
  Roster roster = Roster();  // how errors name the ranks
  bool keep_control_file = false;
};

// Collective; blocks until every rank has taken part. A rank on another machine is refused, by name.
Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline);

// Instead of hand_over(): this rank cannot take part, and the ranks that wait for it get `why`. Best effort.
void refuse_hand_over(Store& store, const HandOverOptions& options, const Status& why);

// The key that hand_over leaves in the store when it succeeds.
std::string hand_over_key(const std::string& group);

}  // namespace lockstep::comm
