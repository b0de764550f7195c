// Mapping the memory of a file descriptor, at addresses that suit the first-level cache.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// `bytes` from `offset` on, readable, writable, shared; the caller munmaps it. Forks of the process have nothing there.
// Successive mappings of a process lie at different distances modulo
// 256 MiB. Buffers that take part in one operation tend to lie at equal offsets of their arenas; AMD's first-level
// cache guesses the way of a line from a hash of 28 address bits (Zen 2 to 4), takes such lines for one another, and
// copies and sums run at a third of their speed. Multiples of 2 MiB, so that huge pages stay possible where they are
// allowed.
Result<std::byte*> map_shared(int fd, std::size_t offset, std::size_t bytes);

// Makes all pages of `memory` present in one call, instead of by a fault for each later. Failure costs those faults.
void populate(std::span<std::byte> memory);

}  // namespace lockstep::comm
