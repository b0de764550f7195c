// The arguments of a transform's text, as the types of its parameters. A wrong text is a DataError (kInvalidArgument).
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/transforms/transforms.h"
#include "transforms/call_text.h"

namespace lockstep::data::text {

[[noreturn]] void refuse(const std::string& text);
bool is_none(const TextValue& value);

void read(const TextValue& value, double& into);
void read(const TextValue& value, int& into);
void read(const TextValue& value, bool& into);
void read(const TextValue& value, OutputSize& into);
void read(const TextValue& value, KernelSize& into);
void read(const TextValue& value, AngleRange& into);
void read(const TextValue& value, Jitter& into);
void read(const TextValue& value, PerAxis& into);
void read(const TextValue& value, Interval01& into);
void read(const TextValue& value, Point& into);
void read(const TextValue& value, Padding& into);
void read(const TextValue& value, Fill& into);
void read(const TextValue& value, std::vector<double>& into);
void read(const TextValue& value, Interpolation& into);
void read(const TextValue& value, PaddingMode& into);
void read(const TextValue& value, std::variant<int, OutputSize>& into);
// In parse.cpp.
void read(const TextValue& value, std::vector<Transform>& into);
// Takes a Compose in the list as the transforms of the Compose.
void read_flat(const TextValue& value, std::vector<Transform>& into);

// None leaves the parameter out.
template <typename T>
void read(const TextValue& value, std::optional<T>& into) {
  into.reset();
  if (is_none(value)) return;
  if constexpr (std::is_default_constructible_v<T>) {
    into.emplace();
  } else {
    into.emplace(0);
  }
  read(value, *into);
}

// Reads one of these words; the value may be a longer name that ends with it, as "InterpolationMode.BILINEAR".
std::size_t find_word(const TextValue& value, const std::vector<std::string>& known);
template <typename Enum>
void read_word(const TextValue& value, Enum& into, const std::vector<std::pair<std::string, Enum>>& words) {
  std::vector<std::string> known;
  for (const auto& [word, meaning] : words) known.push_back(word);
  into = words[find_word(value, known)].second;
}

struct ParameterName {
  const char* name;
  bool required;
};
// Returns the argument of each parameter, or nullptr for a parameter that the call leaves out. An argument without a
// name belongs to the parameter at its position. Refuses an argument that belongs to no parameter, two arguments for
// one parameter, and a call without a required parameter.
std::vector<const TextValue*> arguments_of(const TextValue& call, const std::vector<ParameterName>& parameters);

}  // namespace lockstep::data::text
