#include "lockstep/reduce/reduce.h"

#include <cstdlib>

#include "reduce/reduce_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep::comm {
namespace {

#if defined(__x86_64__)
// clang 14 has no name for F16C in __builtin_cpu_supports. The operating system's part (the wide registers) is checked
// with AVX2.
bool cpu_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && cpu_has_f16c();
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const ReduceIsa& isa_in_use() {
  static const ReduceIsa isa = choose_reduce_isa(supported_reduce_isas(), std::getenv("LOCKSTEP_ISA"));
  return isa;
}

}  // namespace

ReduceIsaList supported_reduce_isas() {
  ReduceIsaList list{};
  list.isas[list.size++] = {"portable", reduce_portable};
#if defined(__x86_64__)
  if (cpu_has_avx2()) list.isas[list.size++] = {"avx2", reduce_avx2};
  if (cpu_has_avx512()) list.isas[list.size++] = {"avx512", reduce_avx512};
#endif
  return list;
}

ReduceIsa choose_reduce_isa(const ReduceIsaList& list, const char* requested) {
  for (int i = 0; i < list.size; ++i) {
    if (requested != nullptr && std::string_view(requested) == list.isas[i].name) return list.isas[i];
  }
  return list.isas[list.size - 1];
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            std::size_t count) {
  if (count == 0 || outputs.empty()) return;
  const std::size_t divisor = reduction.divisor == 0 ? inputs.size() : reduction.divisor;
  isa_in_use().kernel({reduction.type, reduction.op, reduction.factor, divisor, inputs.data(), inputs.size(),
                       outputs.data(), outputs.size(), count * size_of(reduction.type)});
}

std::string_view reduce_isa() {
  return isa_in_use().name;
}

}  // namespace lockstep::comm
