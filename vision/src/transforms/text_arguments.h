// The arguments of a transform's text, as the types of its parameters. Within these files a wrong text is a DataError
// (kInvalidArgument).
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "transforms/call_text.h"
#include "lockstep/data/errors.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data::text {

[[noreturn]] void refuse(const std::string& text);
bool is_none(const TextValue& value);

// torch.dtype, of those that samples may have.
enum class NumberType { kFloat, kByte };

// RandomErasing's value: numbers, or 'random'.
struct ErasingValue {
  std::vector<double>& numbers;
  bool& random;
};

// The transforms of a Compose, with those of a Compose in it in its place.
struct TransformSequence {
  std::vector<Transform> transforms;
};

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
void read(const TextValue& value, AutoAugmentPolicy& into);
void read(const TextValue& value, std::variant<int, OutputSize>& into);
void read(const TextValue& value, NumberType& into);
void read(const TextValue& value, ErasingValue& into);
void read(const TextValue& value, std::vector<Transform>& into);  // in parse.cpp, and the next one
void read(const TextValue& value, TransformSequence& into);

// None is for parameters that may be left out.
template <typename T>
void read(const TextValue& value, std::optional<T>& into) {
  if (is_none(value)) {
    into.reset();
    return;
  }
  T inner = into ? *into : [] {
    if constexpr (std::is_default_constructible_v<T>)
      return T{};
    else
      return T(0);
  }();
  read(value, inner);
  into = inner;
}

// The arguments of one call. Parameters are asked for in torchvision's order.
class Arguments {
 public:
  explicit Arguments(const TextValue& call) : call_(call), used_(call.items.size(), false) {}

  // Whether the parameter is there.
  template <typename T>
  bool optional(const char* name, T& into) {
    const TextValue* value = find(name);
    if (value == nullptr) return false;
    try {
      read(*value, into);
    } catch (const DataError& error) {
      refuse(std::string("parameter '") + name + "': " + error.what());
    }
    return true;
  }
  template <typename T>
  void required(const char* name, T& into) {
    if (!optional(name, into)) missing_.emplace_back(name);
  }
  // Refuses what nobody has asked for, and then what is missing: a name that is not known may be meant for it.
  void finish() const;

 private:
  const TextValue* find(const char* name);

  const TextValue& call_;
  std::vector<bool> used_;
  std::vector<std::string> names_;
  std::vector<std::string> missing_;
};

}  // namespace lockstep::data::text
