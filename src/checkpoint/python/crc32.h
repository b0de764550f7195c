// The CRC-32 of zip files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::checkpoint {

// Goes on with `crc`, which is 0 before the first byte. With carry-less multiplication where the processor has it,
// which is several times as fast as zlib's tables.
std::uint32_t crc32_of(std::uint32_t crc, const void* bytes, std::size_t count);

}  // namespace lockstep::checkpoint
