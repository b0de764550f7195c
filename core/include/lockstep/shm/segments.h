// Segments: the pieces of address space where a process maps one arena.
//
// An arena is one file (memfd) that grows at its end, segment by segment. A segment is a range of offsets. Every
// process maps it in one piece, each at an address of its own, and an allocation never crosses its ends. So a rank and
// an offset always name the same place, also after the arena has grown.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

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

}  // namespace lockstep::comm
