// The memory of other ranks that this process has mapped: the same reaches it once per group, or per rank that is a
// thread. It is mapped once, and one descriptor is kept of each owner. Keyed by the file's inode, which names it
// machine-wide.
#pragma once

#include <cstddef>
#include <memory>

#include "arena_view.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "mapping.h"

namespace lockstep::comm {

struct KnownArena {
  std::shared_ptr<ArenaView> view;
  std::shared_ptr<Fd> process;  // of its owner: one of those that were given
};

Result<KnownArena> share_arena(Fd arena, std::size_t first_bytes, Fd process);
Result<std::shared_ptr<Mapping>> share_control(const Fd& control, std::size_t bytes);

}  // namespace lockstep::comm
