// Lists of names with their values. Pages show them in the order of the list.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::report {

using Value = std::variant<bool, std::int64_t, double, std::string>;
// A configuration, for example {{"optimizer.lr", 0.1}, {"model", "resnet18"}}. Groups are written with dots.
using Values = std::vector<std::pair<std::string, Value>>;
// Measured numbers, for example {{"loss", 0.7}, {"lr", 0.1}}. NaN and infinity are allowed: a run that diverges is
// recorded as it is.
using Scalars = std::vector<std::pair<std::string, double>>;

}  // namespace lockstep::report
