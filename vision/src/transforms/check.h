// Checks a list of transforms. Errors are DataError (kInvalidArgument); they read
// "transform 2 of Compose, Resize: expected ..., found ...".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

// Throws for the first wrong transform.
void check_transforms(const std::vector<Transform>& transforms);

// Throws for wrong parameters, whatever the place is.
void check_parameters(const Transform& transform, const std::string& place);
// Throws for a fill of several levels: for pictures with one channel.
void check_grey_fill(const Transform& transform, const std::string& place);
std::string_view name_of(const Transform& transform);
[[noreturn]] void fail_transform(const std::string& place, std::string_view name, std::string_view expected,
                                 std::string_view found);

}  // namespace lockstep::data
