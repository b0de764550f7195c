// Which arguments each transform has in a text.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "transforms/text_arguments.h"

namespace lockstep::data::text {

using Maker = std::function<Transform(Arguments&)>;

// By the names of the transforms.
const std::map<std::string, Maker>& makers();

}  // namespace lockstep::data::text
