// SegmentTable: tells other processes which segments an arena's owner has added.
//
// It lies in the arena's file, in the page behind the first segment. The owner makes the file longer, then fills the
// entry, then raises `count`, and only then allocates in the new segment. Another rank learns an offset in that segment
// from a post or a message that the owner writes later (release) and the rank reads (acquire), so it sees the entry.
// Entries never change and are never removed, so a reader always sees valid ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/shm/segments.h"

namespace lockstep::comm {

struct SegmentTable {
  struct Entry {
    std::uint64_t begin;
    std::uint64_t end;
  };
  std::atomic<std::uint64_t> count;  // not counting the first segment
  Entry entries[Segments::kMost];
};

inline constexpr std::size_t kPage = 4096;
static_assert(sizeof(SegmentTable) <= kPage);

// The bytes to map for a first segment of `bytes` and the table.
constexpr std::size_t with_table(std::size_t bytes) {
  return bytes + kPage;
}

}  // namespace lockstep::comm
