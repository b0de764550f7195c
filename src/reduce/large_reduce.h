// Reduction into memory that is not read again soon (see copy_past_caches).
#pragma once

#include <vector>

#include "lockstep/reduce/reduce.h"

namespace lockstep::comm {

// As reduce() into one output, and into `cached`, if given, in the ordinary way. Moves `inputs` on.
void reduce_past_caches(const Reduction& reduction, std::vector<const std::byte*>& inputs, std::byte* output,
                        std::size_t count, std::byte* cached = nullptr);

}  // namespace lockstep::comm
