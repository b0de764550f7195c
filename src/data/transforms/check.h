// Checks a list of transforms.
#pragma once

#include <vector>

#include "lockstep/data/transforms/transforms.h"

namespace lockstep::data {

// Throws DataError (kInvalidArgument) that names the first wrong transform and its fault.
void check_transforms(const std::vector<Transform>& transforms);

}  // namespace lockstep::data
