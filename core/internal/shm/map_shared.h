// Maps the memory of a file descriptor at addresses that suit the first-level cache.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Maps `bytes` from `offset` on, readable, writable and shared; the caller munmaps them. Forks of the process have
// nothing there.
//
// Successive mappings get different addresses modulo 256 MiB. Buffers of one operation tend to lie at equal offsets in
// their arenas. AMD's first-level cache (Zen 2 to 4) predicts the way of a line from a hash of 28 address bits and
// would confuse such lines; copies and sums then run at a third of their speed. The addresses are multiples of 2 MiB,
// so that huge pages are possible where the system allows them.
Result<std::byte*> map_shared(int fd, std::size_t offset, std::size_t bytes);

// Makes all pages of `memory` present in one call, instead of by one page fault each. If it fails, the faults happen.
void populate(std::span<std::byte> memory);

}  // namespace lockstep::comm
