// A rank of a group and its arena, seen from another process.
//
// Two signs show that a rank has ended. Its pidfd shows that the process is gone. A lock on its arena's file shows that
// the program is gone: the owner holds it through a descriptor that no other process has, and a program that replaces
// itself (exec) closes it, which a pidfd does not show. The lock costs the other ranks no further descriptor.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/shm/shared_arena.h"
#include "shm/mapping.h"

namespace lockstep::comm {

// For the owner of an arena: a descriptor that holds the lock while it is open.
Result<Fd> hold_owner_lock(int arena);

// Another rank's arena, mapped into this process.
class ArenaView {
 public:
  // `first_bytes`: the size of the arena's first segment.
  static Result<std::shared_ptr<ArenaView>> map(Fd arena, std::size_t first_bytes);
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  std::byte* base() const { return first_->base(); }
  std::size_t first_bytes() const { return first_bytes_; }

  // Maps the segment with this offset, unless it is mapped. Thread-safe.
  Status reach(std::size_t offset) LOCKSTEP_EXCLUDES(mutex_);
  // Its address in this process; null unless reach() has mapped it.
  std::byte* at(std::size_t offset) const;

  // Whether the program that made the arena still runs and still has it.
  bool owner_runs() const;

 private:
  ArenaView(Fd arena, std::size_t first_bytes, std::shared_ptr<Mapping> first)
      : fd_(std::move(arena)), first_bytes_(first_bytes), first_(std::move(first)) {}
  Status map_segment(std::size_t offset) LOCKSTEP_REQUIRES(mutex_);

  const Origin origin_;
  const Fd fd_;
  const std::size_t first_bytes_;
  const std::shared_ptr<Mapping> first_;
  Mutex mutex_;
  Segments further_;  // in the order in which they were mapped
};

// One rank of a group, seen from another process.
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
