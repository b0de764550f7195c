// One rank of a group, seen from another process.
#pragma once

#include <memory>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "shm/arena_view.h"

namespace lockstep::comm {

struct Peer {
  std::shared_ptr<ArenaView> arena;
  std::shared_ptr<Fd> process;  // pidfd: readable once the process is gone
  int pid = 0;                  // in the peer's own pid namespace, for messages

  // Its process has ended, or has become another program (exec).
  bool is_gone() const;
  // How a rank that is gone ended, for messages: "died", or what else is possible. May take 0.2 s.
  const char* how_gone() const;
};

// A pidfd of this process, for its peers.
Result<Fd> open_own_process();
// Whether a descriptor that was handed over is a pidfd; waiting for another kind would be wrong.
bool is_process(int fd);

}  // namespace lockstep::comm
