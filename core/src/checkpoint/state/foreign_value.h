// A Python object in a file that is not read (python/pickle_reader.h). It holds the object's place among the values
// beside it, and is refused where it is reached.
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {

struct ForeignValue final : torch::CustomClassHolder {
  explicit ForeignValue(std::string text) : what(std::move(text)) {}
  std::string what;
};

// `what` says what it is, such as "the Python object argparse.Namespace".
inline c10::IValue foreign_value(std::string what) {
  return c10::IValue::make_capsule(c10::make_intrusive<ForeignValue>(std::move(what)));
}

// What a foreign value is; nullptr for every other value.
inline const std::string* foreign_text(const c10::IValue& value) {
  if (!value.isCapsule()) return nullptr;
  const auto* const foreign = dynamic_cast<const ForeignValue*>(value.toCapsule().get());
  return foreign == nullptr ? nullptr : &foreign->what;
}

// The end of a message that refuses a foreign value.
inline constexpr std::string_view kForeignRefused =
    ", which is refused: only tensors, numbers, text, lists, tuples and dicts are read, and nothing in a file is "
    "executed. Save a state_dict() of such values in Python";

}  // namespace lockstep::checkpoint
