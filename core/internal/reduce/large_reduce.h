// Reduction into memory that is not read again soon (see copy_past_caches).
#pragma once

#include <vector>

#include "lockstep/reduce/reduce.h"

namespace lockstep::comm {

// Like reduce() into one output. With `cached`, which needs an output that is not an input, the result goes there too,
// in the ordinary way. May advance `inputs`.
void reduce_past_caches(const Reduction& reduction, std::vector<const std::byte*>& inputs, std::byte* output,
                        std::size_t count, std::byte* cached = nullptr);

}  // namespace lockstep::comm
