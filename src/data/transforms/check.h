// Whether a list of transforms can be done.
#pragma once

#include <vector>

#include "lockstep/data/transforms/transforms.h"

namespace lockstep::data {

// Throws DataError (kInvalidArgument) naming the first transform that cannot, and why.
void check_transforms(const std::vector<Transform>& transforms);

}  // namespace lockstep::data
