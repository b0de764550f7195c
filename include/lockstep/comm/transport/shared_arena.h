// SharedArena: memory of this process that the other ranks of the machine can map.
//
// One memfd without a name (nothing in /dev/shm, nothing to clean up: the kernel frees it with its last user). It is as
// large as the machine's memory from the start, but pages exist only once touched, so peers map it once and see every
// later allocation without any further hand-over. See docs/architecture.md, "Memory".
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/comm/transport/range_allocator.h"

namespace lockstep::comm {

struct SharedArenaOptions {
  // Address space to reserve, bytes; 0: the machine's physical memory. An allocation beyond it fails.
  std::size_t reserve = 0;
  // Freed memory that stays with the arena for the next allocation instead of going back to the system, bytes.
  std::size_t retain = std::size_t{64} << 20;
};

class SharedArena {
 public:
  static Result<std::shared_ptr<SharedArena>> create(const SharedArenaOptions& options = {});
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // When the pages of a large allocation are made. At once costs less where all of them will be used.
  enum class Pages { kAtOnce, kWhenTouched };
  // Memory aligned to 64 bytes (to a page from one page up). Contents are unspecified. Thread-safe.
  Result<std::byte*> allocate(std::size_t bytes, Pages pages = Pages::kAtOnce);
  // `pointer` came from allocate. Thread-safe.
  void deallocate(std::byte* pointer);

  bool contains(const void* pointer, std::size_t bytes) const;
  std::size_t offset_of(const void* pointer) const { return static_cast<const std::byte*>(pointer) - base_; }
  std::byte* base() const { return base_; }
  std::size_t reserve() const { return reserve_; }
  int fd() const { return fd_.get(); }
  // Bytes handed out now.
  std::size_t allocated() const;

 private:
  SharedArena(Fd fd, std::byte* base, std::size_t reserve, std::size_t retain);
  void release_pages(std::size_t offset, std::size_t bytes);

  Fd fd_;
  std::byte* base_;
  std::size_t reserve_;
  std::size_t retain_;
  mutable Mutex mutex_;
  RangeAllocator ranges_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t retained_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::comm
