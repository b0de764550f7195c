// Text such as "RandomRotation(15, fill=(0, 0, 255))", taken apart, and its arguments as the types of the transforms'
// parameters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

struct TextValue {
  enum class Kind { kNumber, kWord, kList, kCall } kind = Kind::kWord;
  double number = 0;
  std::string word;                // of a call: its name
  std::vector<TextValue> items;    // of a list, or the arguments of a call
  std::vector<std::string> names;  // of the arguments of a call; empty for those by position
};

// A name with or without arguments. kInvalidArgument says where the text goes wrong.
Result<TextValue> parse_call(std::string_view text);

// A wrong text is a DataError (kInvalidArgument) here.
namespace text {

[[noreturn]] void refuse(const std::string& text);
bool is_none(const TextValue& value);

void read(const TextValue& value, double& into);
void read(const TextValue& value, int& into);
void read(const TextValue& value, bool& into);
void read(const TextValue& value, OutputSize& into);
void read(const TextValue& value, KernelSize& into);
void read(const TextValue& value, AngleRange& into);
void read(const TextValue& value, Jitter& into);
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

}  // namespace text
}  // namespace lockstep::data
