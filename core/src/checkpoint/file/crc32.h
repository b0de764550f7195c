// The CRC-32 of zip files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/instruction_set.h"

namespace lockstep::checkpoint {

// Goes on with `crc`, which is 0 before the first byte. With carry-less multiplication where the processor has it,
// which is many times as fast as zlib's tables. Every instruction set gives the same number.
std::uint32_t crc32_of(std::uint32_t crc, const void* bytes, std::size_t count,
                       InstructionSet widest = instruction_set());

}  // namespace lockstep::checkpoint
