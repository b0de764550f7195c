// Limits of every store. Larger keys and values are refused with kInvalidArgument, which names the key.
#pragma once

#include <cstddef>

namespace lockstep::comm {

// Stores carry addresses and small messages; tensors go through collectives.
inline constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;  // 64 MiB, also after append
inline constexpr std::size_t kMaxKeyBytes = std::size_t{64} << 10;    // 64 KiB

}  // namespace lockstep::comm
