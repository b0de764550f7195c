// The memory of a file descriptor, mapped at addresses that suit the first-level cache.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Maps `bytes` from `offset` on, readable, writable and shared; the caller munmaps them. Forks of the process have
// nothing there.
//
// Successive mappings get different addresses modulo 256 MiB. Buffers of one operation tend to lie at equal offsets in
// their arenas. AMD's first-level cache (Zen 2 to 4) predicts the way of a line from a hash of 28 address bits and
// would confuse such lines; copies and sums then run at a third of their speed. The addresses are multiples of
// kHugePage, so that huge pages are possible where the system allows them.
Result<std::byte*> map_shared(int fd, std::size_t offset, std::size_t bytes);
// The same memory as the process may change it for itself alone: a page that is written becomes a copy. Forks have it.
Result<std::byte*> map_private(int fd, std::size_t offset, std::size_t bytes);

// Makes all pages of `memory` present in one call, instead of by one page fault each. If it fails, the faults happen.
void populate(std::span<std::byte> memory);

// Memory of a file descriptor, mapped shared while the object lives. Forks of the process do not have it.
class Mapping {
 public:
  static Result<std::shared_ptr<Mapping>> map(int fd, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  const Origin origin_;
  std::byte* base_;
  std::size_t bytes_;
};

}  // namespace lockstep::comm
