#include "base/instruction_set.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "lockstep/base/environment.h"

namespace lockstep {
namespace {

constexpr std::array kAll{InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512};

#if defined(__x86_64__)
// clang 14 has no name for F16C in __builtin_cpu_supports. Whether the operating system keeps the wide registers is
// checked with AVX2.
bool cpu_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

InstructionSet widest() {
  if (!__builtin_cpu_supports("avx2") || !cpu_has_f16c()) return InstructionSet::kPortable;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
}
#else
InstructionSet widest() {
  return InstructionSet::kPortable;
}
#endif

}  // namespace

std::string_view to_string(InstructionSet set) {
  constexpr std::array<std::string_view, kAll.size()> kNames{"portable", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(set)];
}

std::span<const InstructionSet> supported_instruction_sets() {
  static const std::size_t count = static_cast<std::size_t>(widest()) + 1;
  return std::span(kAll).first(count);
}

InstructionSet choose_instruction_set(std::span<const InstructionSet> supported, const char* requested) {
  for (const InstructionSet set : supported) {
    if (requested != nullptr && to_string(set) == requested) return set;
  }
  return supported.back();
}

InstructionSet instruction_set() {
  static const InstructionSet set = [] {
    const auto requested = Environment::of_process().get("LOCKSTEP_ISA");
    return choose_instruction_set(supported_instruction_sets(), requested ? requested->c_str() : nullptr);
  }();
  return set;
}

}  // namespace lockstep
