// Memory that the ranks of a machine share: SharedArena, and Segments, of which it consists.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// A piece of address space where a process maps a part of an arena.
//
// An arena is one file (memfd) that grows at its end, segment by segment. A segment is a range of offsets. Every
// process maps it in one piece, each at an address of its own, and an allocation never crosses its ends. So a rank and
// an offset always name the same place, also after the arena has grown.
struct Segment {
  std::size_t begin = 0;  // offsets; `end` is not part of it
  std::size_t end = 0;
  std::byte* base = nullptr;  // the address of `begin` in this process
};

// Append-only: any thread may read without a lock while one thread adds.
class Segments {
 public:
  // An arena grows by at least a quarter each time, so 64 segments go from 1 MiB to 1 TiB.
  static constexpr std::size_t kMost = 64;

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  const Segment& operator[](std::size_t index) const { return all_[index]; }

  // One thread at a time; at most kMost times.
  void add(const Segment& segment) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    all_[count] = segment;
    count_.store(count + 1, std::memory_order_release);
  }

  // Null when no segment has it.
  const Segment* with_offset(std::size_t offset) const {
    for (std::size_t i = 0, n = count(); i < n; ++i) {
      if (offset >= all_[i].begin && offset < all_[i].end) return &all_[i];
    }
    return nullptr;
  }
  const Segment* with_memory(const void* address, std::size_t bytes) const {
    const auto* const start = static_cast<const std::byte*>(address);
    for (std::size_t i = 0, n = count(); i < n; ++i) {
      const std::size_t size = all_[i].end - all_[i].begin;
      if (start >= all_[i].base && bytes <= size && start <= all_[i].base + size - bytes) return &all_[i];
    }
    return nullptr;
  }

 private:
  std::array<Segment, kMost> all_;
  std::atomic<std::size_t> count_{0};
};

class RangeAllocator;
class RangeSet;

struct SharedArenaOptions {
  // The most bytes that may be allocated at any moment; 0: all memory of the machine or the container. An allocation
  // beyond this limit fails.
  std::size_t limit = 0;
  // Address space to begin with, bytes; 0: suits the machine and leaves room for 1024 ranks. More is added when this
  // space is used up.
  std::size_t first_segment = 0;
  // How much freed memory the arena keeps for later allocations instead of returning it to the system, bytes.
  std::size_t retain = std::size_t{64} << 20;
};

// SharedArena: memory of this process that the other ranks of the machine can map.
//
// An arena is one memfd: it has no entry in /dev/shm, and the kernel frees it with its last user. It begins with more
// address space than most programs use; a page exists only once it is touched. So peers map the arena once and see
// every later allocation. When the address space is used up, the arena grows by a further segment. A peer maps the
// segment when it first gets an address there. See docs/memory.md.
//
// In a fork of its process it allocates and frees nothing, and the memory is private: nobody sees what the child writes
// there.
class SharedArena {
 public:
  static Result<std::shared_ptr<SharedArena>> create(const SharedArenaOptions& options = {});
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // When the pages of a large allocation are made. kAtOnce costs less if all pages will be used.
  enum class Pages { kAtOnce, kWhenTouched };
  // Returns whole pages: no two allocations share a page (see withdraw). Contents are unspecified. Thread-safe.
  Result<std::byte*> allocate(std::size_t bytes, Pages pages = Pages::kAtOnce);
  // `pointer` came from allocate. Thread-safe.
  void deallocate(std::byte* pointer);

  // Returns the freed memory that is kept to the system. Thread-safe.
  void trim();

  // From now on, this process does not see what other processes write to these bytes or to the rest of their pages. The
  // contents stay and the memory remains usable, but it no longer belongs to the arena and is never allocated again.
  // For buffers to which a rank may still write that froze in the middle of an operation. Thread-safe.
  void withdraw(const void* pointer, std::size_t bytes);

  // Whether other processes see all of these bytes.
  bool contains(const void* pointer, std::size_t bytes) const {
    const auto* const start = static_cast<const std::byte*>(pointer);
    const bool in_first = start >= base_ && bytes <= first_bytes_ && start <= base_ + first_bytes_ - bytes;
    if (!in_first && (segments_.count() == 1 || segments_.with_memory(pointer, bytes) == nullptr)) return false;
    if (withdrawn_.load(std::memory_order_acquire) == nullptr) return true;
    return first_withdrawn(offset_of(pointer), offset_of(pointer) + bytes) == nullptr;
  }
  // The offset of a pointer into the arena, which names the place to every rank.
  std::size_t offset_of(const void* pointer) const {
    const auto distance = static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - base_);
    return distance < first_bytes_ ? distance : offset_beyond(pointer);
  }
  // The address of an offset; null when no segment has it.
  std::byte* at(std::size_t offset) const;

  // The first segment, and the number of segments.
  std::byte* base() const { return base_; }
  std::size_t first_bytes() const { return first_bytes_; }
  std::size_t segments() const { return segments_.count(); }
  int fd() const { return fd_.get(); }
  // Bytes allocated now.
  std::size_t allocated() const;

 private:
  SharedArena(Fd fd, Fd life, std::byte* base, std::size_t first_bytes, const SharedArenaOptions& options);
  std::size_t offset_beyond(const void* pointer) const;
  Status grow(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  Status add_segment(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  Status exhausted(std::size_t bytes) const LOCKSTEP_REQUIRES(mutex_);
  void make_pages_of(std::size_t offset, std::size_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  void release_pages(std::size_t offset, std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  Status make_private(std::size_t begin, std::size_t end) const;
  bool map_private(std::size_t begin, std::size_t end) const;
  static void make_all_private(void* arena);  // in a fork

  // A withdrawn range. The list only grows, so it is read without a lock, also in a fork.
  struct Withdrawn {
    std::size_t begin;
    std::size_t end;
    const Withdrawn* before;
  };
  // The first withdrawn range that touches this range; null: none does.
  const Withdrawn* first_withdrawn(std::size_t begin, std::size_t end) const;

  const Origin origin_;
  Fd fd_;
  Fd life_;  // holds the lock that shows others that this program still runs (peer.h)
  std::byte* const base_;
  const std::size_t first_bytes_;
  const std::size_t limit_;
  const std::size_t retain_;
  Segments segments_;
  mutable Mutex mutex_;
  const std::unique_ptr<RangeAllocator> ranges_ LOCKSTEP_PT_GUARDED_BY(mutex_);
  // Offsets whose pages exist: an allocation there need not make them again.
  const std::unique_ptr<RangeSet> made_ LOCKSTEP_PT_GUARDED_BY(mutex_);
  std::size_t retained_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::atomic<const Withdrawn*> withdrawn_{nullptr};  // the last
  std::optional<ForkHandler> fork_handler_;
};

}  // namespace lockstep::comm
