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

std::string first_other_class(const NamedClasses& one, const NamedClasses& other) {
  std::istringstream one_lines(one.text);
  std::istringstream other_lines(other.text);
  const auto next = [](std::istringstream& lines) {
    std::string name;
    return std::getline(lines, name) ? fmt::format("'{}'", name) : std::string("missing");
  };
  for (int number = 0; one_lines && other_lines; ++number) {
    const std::string first = next(one_lines);
    const std::string second = next(other_lines);
    if (first != second)
      return fmt::format("class {} is {} {}, and {} {}", number, first, one.where, second, other.where);
  }
  return "";
}

}  // namespace lockstep::trainer_detail
