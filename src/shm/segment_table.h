// SegmentTable: where an arena's owner tells the other processes which segments it has added.
//
// It lies in the arena's file itself, in the page behind the first segment, and exists once something is written there.
// The owner makes the file longer, then fills the entry, then raises `count`, and only then hands out memory of the new
// segment. Another rank learns an offset in it by a post or a message that the owner writes after that (release) and
// the rank reads (acquire), so the entry is there for it. Entries never change and nothing is ever taken away, so no
// reader can be overtaken.
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
  std::atomic<std::uint64_t> count;  // without the first
  Entry entries[Segments::kMost];
};

inline constexpr std::size_t kPage = 4096;
static_assert(sizeof(SegmentTable) <= kPage);

// What is mapped of the first segment, which has `bytes`, and the table.
constexpr std::size_t with_table(std::size_t bytes) {
  return bytes + kPage;
}

}  // namespace lockstep::comm
