#include "shm/hand_over.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/fault_point.h"
#include "hand_over_protocol.h"
#include "lockstep/base/mutex.h"
#include "memory_file.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

using Inode = std::pair<dev_t, ino_t>;

struct Owned {
  std::weak_ptr<ArenaView> view;
  std::weak_ptr<Fd> process;
};

// The memory of other ranks that this process has mapped. The same memory arrives once for each group, or for each rank
// that is a thread of this process. It is mapped once, and one pidfd of each owner is kept. The key is the file's
// inode, which is unique on the machine.
struct KnownMemory {
  Mutex mutex;
  std::map<Inode, Owned> arenas LOCKSTEP_GUARDED_BY(mutex);
  std::map<Inode, std::weak_ptr<Mapping>> controls LOCKSTEP_GUARDED_BY(mutex);
};

KnownMemory& known_memory() {
  static constinit OfProcess<KnownMemory> known;
  return known.get();
}

Result<Inode> check_file(const Fd& file, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const struct stat info, check_memory_file(file.get(), bytes));
  return Inode{info.st_dev, info.st_ino};
}

Result<Peer> make_peer(const Introduction& introduction, Fd arena, Fd process) {
  const std::size_t first_bytes = introduction.first_bytes;
  LOCKSTEP_ASSIGN_OR_RETURN(const Inode inode, check_file(arena, with_table(first_bytes)));
  KnownMemory& all = known_memory();
  MutexLock lock(all.mutex);
  std::erase_if(all.arenas, [](const auto& entry) { return entry.second.view.expired(); });
  Owned& known = all.arenas[inode];
  Peer peer{known.view.lock(), known.process.lock(), static_cast<int>(introduction.pid)};
  if (!peer.arena || peer.arena->first_bytes() != first_bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(peer.arena, ArenaView::map(std::move(arena), first_bytes));
    known.view = peer.arena;
  }
  if (!peer.process || !peer.process->valid()) {
    peer.process = std::make_shared<Fd>(std::move(process));
    known.process = peer.process;
  }
  return peer;
}

Result<std::shared_ptr<Mapping>> map_control(const Fd& control, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Inode inode, check_file(control, bytes));
  KnownMemory& all = known_memory();
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

}  // namespace

HandOverSide::HandOverSide(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline)
    : store_(store), arena_(arena), options_(options), deadline_(deadline) {
  self_.rank = options.rank;
  self_.group_size = options.group_size;
  self_.pid = getpid();
  self_.first_bytes = arena.first_bytes();
  introductions_.resize(options.group_size);
  descriptors_.resize(options.group_size);
}

Result<HandOver> HandOverSide::build(const Fd& control) {
  LOCKSTEP_FAULT_POINT("hand over: answered");
  HandOver result;
  LOCKSTEP_ASSIGN_OR_RETURN(result.control, map_control(control, options_.control_bytes));
  for (int rank = 0; rank < options_.group_size; ++rank) {
    Fd process = descriptors_[rank].size() > 1 ? std::move(descriptors_[rank][1]) : Fd();
    LOCKSTEP_ASSIGN_OR_RETURN(Peer peer,
                              make_peer(introductions_[rank], std::move(descriptors_[rank][0]), std::move(process)));
    result.peers.push_back(std::move(peer));
  }
  return result;
}

std::string refused_key(const std::string& group) {
  return fmt::format("lockstep/{}/refused", group);
}
std::string hand_over_key(const std::string& group) {
  return fmt::format("lockstep/{}/address", group);
}

Status publish(Store& store, const std::string& group, const HostAddress& address) {
  return store.set(hand_over_key(group), {reinterpret_cast<const char*>(&address), sizeof(address)});
}

Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline) {
  return options.rank == 0 ? hand_over_as_host(store, arena, options, deadline)
                           : hand_over_as_guest(store, arena, options, deadline);
}

void refuse_hand_over(Store& store, const HandOverOptions& options, const Status& why) {
  (void)store.set(refused_key(options.name), to_text(why));
  if (options.rank != 0) return;
  HostAddress nowhere;
  put(why, nowhere);
  (void)publish(store, options.name, nowhere);
}

}  // namespace lockstep::comm
