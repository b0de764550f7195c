// The memory of other ranks that this process has mapped. The same memory arrives once for each group, or for each rank
// that is a thread of this process. It is mapped once, and one pidfd of each owner is kept. The key is the file's
// inode, which is unique on the machine.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "shm/arena_view.h"
#include "shm/mapping.h"

namespace lockstep::comm {

struct KnownArena {
  std::shared_ptr<ArenaView> view;
  std::shared_ptr<Fd> process;  // the owner's pidfd: one of those that were passed in
};

Result<KnownArena> share_arena(Fd arena, std::size_t first_bytes, Fd process);
Result<std::shared_ptr<Mapping>> share_control(const Fd& control, std::size_t bytes);

}  // namespace lockstep::comm
