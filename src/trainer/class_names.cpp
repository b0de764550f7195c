#include "class_names.h"

#include <fmt/format.h>

#include <sstream>

#include "base/printable.h"

namespace lockstep::trainer_detail {

// Names of folders may be any bytes, but checkpoints hold UTF-8.
std::string text_of_classes(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += printable(name) + "\n";
  return text;
}

std::string first_other_class(const std::string& saved, const std::string& present) {
  std::istringstream saved_lines(saved);
  std::istringstream present_lines(present);
  const auto next = [](std::istringstream& lines) {
    std::string name;
    return std::getline(lines, name) ? fmt::format("'{}'", name) : std::string("missing");
  };
  for (int number = 0; saved_lines && present_lines; ++number) {
    const std::string was = next(saved_lines);
    const std::string is = next(present_lines);
    if (was != is) return fmt::format("class {} is {} in the checkpoint, and {} in this training", number, was, is);
  }
  return "";
}

}  // namespace lockstep::trainer_detail
