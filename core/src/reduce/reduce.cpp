#include "lockstep/reduce/reduce.h"

#include "base/instruction_set.h"
#include "reduce/reduce_kernels.h"

namespace lockstep::comm {

ReduceKernel reduce_kernel(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512: return reduce_avx512;
    case InstructionSet::kAvx2: return reduce_avx2;
#endif
    default: return reduce_portable;
  }
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            std::size_t count) {
  if (count == 0 || outputs.empty()) return;
  const std::size_t divisor = reduction.divisor == 0 ? inputs.size() : reduction.divisor;
  static const ReduceKernel kernel = reduce_kernel(instruction_set());
  kernel({reduction.type, reduction.op, reduction.factor, divisor, inputs.data(), inputs.size(), outputs.data(),
          outputs.size(), count * size_of(reduction.type)});
}

std::string_view reduce_isa() {
  return to_string(instruction_set());
}

}  // namespace lockstep::comm
