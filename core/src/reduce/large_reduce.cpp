#include "reduce/large_reduce.h"

#include <algorithm>
#include <array>
#include <span>

#include "reduce/copy.h"

namespace lockstep::comm {

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
