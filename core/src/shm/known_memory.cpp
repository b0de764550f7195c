#include "known_memory.h"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "lockstep/base/mutex.h"
#include "memory_file.h"
#include "segment_table.h"

namespace lockstep::comm {
namespace {

using Inode = std::pair<dev_t, ino_t>;

struct Owned {
  std::weak_ptr<ArenaView> view;
  std::weak_ptr<Fd> process;
};

struct Known {
  Mutex mutex;
  std::map<Inode, Owned> arenas LOCKSTEP_GUARDED_BY(mutex);
  std::map<Inode, std::weak_ptr<Mapping>> controls LOCKSTEP_GUARDED_BY(mutex);
};

Known& known_memory() {
  static constinit OfProcess<Known> known;
  return known.get();
}

Result<Inode> check_file(const Fd& file, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const struct stat info, check_memory_file(file.get(), bytes));
  return Inode{info.st_dev, info.st_ino};
}

}  // namespace

Result<KnownArena> share_arena(Fd arena, std::size_t first_bytes, Fd process) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Inode inode, check_file(arena, with_table(first_bytes)));
  Known& all = known_memory();
  MutexLock lock(all.mutex);
  std::erase_if(all.arenas, [](const auto& entry) { return entry.second.view.expired(); });
  Owned& known = all.arenas[inode];
  KnownArena result{known.view.lock(), known.process.lock()};
  if (!result.view || result.view->first_bytes() != first_bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(result.view, ArenaView::map(std::move(arena), first_bytes));
    known.view = result.view;
  }
  if (!result.process || !result.process->valid()) {
    result.process = std::make_shared<Fd>(std::move(process));
    known.process = result.process;
  }
  return result;
}

Result<std::shared_ptr<Mapping>> share_control(const Fd& control, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Inode inode, check_file(control, bytes));
  Known& all = known_memory();
  MutexLock lock(all.mutex);
  std::erase_if(all.controls, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Mapping>& known = all.controls[inode];
  std::shared_ptr<Mapping> result = known.lock();
  if (!result || result->bytes() != bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(result, Mapping::map(control.get(), bytes));
    known = result;
  }
  return result;
}

}  // namespace lockstep::comm
