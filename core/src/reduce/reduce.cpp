#include "lockstep/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/instruction_set.h"
#include "reduce/copy.h"
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

// In blocks, which are in the first-level cache when they are copied. An output that is also an input is in the cache
// already, so it takes the ordinary way.
void reduce_past_caches(const Reduction& reduction, std::vector<const std::byte*>& inputs, std::byte* output,
                        std::size_t count, std::byte* cached) {
  if (std::find(inputs.begin(), inputs.end(), output) != inputs.end()) {
    return reduce(reduction, inputs, std::span(&output, 1), count);
  }
  constexpr std::size_t kBlockBytes = 8192;
  alignas(64) std::array<std::byte, kBlockBytes> block;
  const std::size_t element = size_of(reduction.type);
  for (std::size_t elements = 0; count > 0; count -= elements) {
    elements = std::min(kBlockBytes / element, count);
    std::byte* const result = cached != nullptr ? cached : block.data();
    reduce(reduction, inputs, std::span(&result, 1), elements);
    copy_past_caches(output, result, elements * element);
    output += elements * element;
    if (cached != nullptr) cached += elements * element;
    for (const std::byte*& input : inputs) input += elements * element;
  }
}

}  // namespace lockstep::comm
