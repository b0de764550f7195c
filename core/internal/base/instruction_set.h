// The instruction sets that our kernels are compiled for, and which of them this process uses.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

// Narrowest first.
enum class InstructionSet : std::uint8_t {
  kPortable,
  kAvx2,    // AVX2 and F16C
  kAvx512,  // AVX-512 F, BW, DQ and VL as well
};

// "portable", "avx2", "avx512".
std::string_view to_string(InstructionSet set);

// What this processor can run, narrowest first; kPortable is always there.
std::span<const InstructionSet> supported_instruction_sets();

// The widest of `supported`, or the one that `requested` names if it is there; null or an unknown name ask for the
// widest.
InstructionSet choose_instruction_set(std::span<const InstructionSet> supported, const char* requested);

// What the kernels of this process use: the widest that the processor can run, or what LOCKSTEP_ISA asks for.
InstructionSet instruction_set();

}  // namespace lockstep
