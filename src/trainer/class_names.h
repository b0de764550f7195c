// The names of classes, which checkpoints keep as text.
#pragma once

#include <string>
#include <vector>

namespace lockstep::trainer_detail {

inline constexpr const char* kClassesValue = "classes";  // its name in a checkpoint

// One name a line.
std::string text_of_classes(const std::vector<std::string>& names);

// Says which is the first class that differs; empty: none.
std::string first_other_class(const std::string& saved, const std::string& present);

}  // namespace lockstep::trainer_detail
