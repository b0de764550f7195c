// The file of an arena: memory without a name, for other processes to map, and the table of its segments.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/shm/shared_arena.h"

namespace lockstep::comm {

// Sealed against shrinking: otherwise a process that has it could remove pages that others have mapped, and they would
// die of SIGBUS. It may grow, and holes may be punched. /proc/PID/maps shows `name`.
Result<Fd> make_memory_file(const char* name, std::size_t bytes);

// kCorrupt unless a descriptor from another process is such memory, of at least `bytes`.
Result<struct stat> check_memory_file(int fd, std::size_t bytes);

// SegmentTable: tells other processes which segments an arena's owner has added.
//
// It lies in the arena's file, in the page behind the first segment. The owner makes the file longer, then fills the
// entry, then raises `count`, and only then allocates in the new segment. Another rank learns an offset in that segment
// from a post or a message that the owner writes later (release) and the rank reads (acquire), so it sees the entry.
// Entries never change and are never removed, so a reader always sees valid ones.
struct SegmentTable {
  struct Entry {
    std::uint64_t begin;
    std::uint64_t end;
  };
  std::atomic<std::uint64_t> count;  // not counting the first segment
  Entry entries[Segments::kMost];
};

inline constexpr std::size_t kSmallestPage = 4096;
// A multiple of the system's pages: segments and withdrawn ranges are mapped apart from their neighbours. ARM's kernels
// have pages of 4, 16 or 64 KiB.
#if defined(__aarch64__)
inline constexpr std::size_t kPage = std::size_t{64} << 10;
#else
inline constexpr std::size_t kPage = kSmallestPage;
#endif
static_assert(sizeof(SegmentTable) <= kPage);

// The bytes to map for a first segment of `bytes` and the table.
constexpr std::size_t with_table(std::size_t bytes) {
  return bytes + kPage;
}

}  // namespace lockstep::comm
