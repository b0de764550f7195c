// The names of classes, which checkpoints keep as text.
#pragma once

#include <string>
#include <vector>

namespace lockstep::trainer_detail {

inline constexpr const char* kClassesValue = "classes";  // its name in a checkpoint

// One name a line.
std::string text_of_classes(const std::vector<std::string>& names);

struct NamedClasses {
  std::string where;  // "in the checkpoint"
  std::string text;   // text_of_classes()
};
// Says which is the first class that differs; empty: none.
std::string first_other_class(const NamedClasses& one, const NamedClasses& other);

}  // namespace lockstep::trainer_detail
