// Values of LibTorch from files of anyone: objects that are not read, and dicts that cannot take all memory.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

// A Python object in a file that is not read (python/pickle_reader.h). It holds the object's place among the values
// beside it, and is refused where it is reached.
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

// A dict of LibTorch doubles its table when too many keys fall on neighbouring places. A hostile file can choose keys
// that always do, and then a table of a few keys takes all memory. DictGrowth calculates the size of the tables
// beforehand.
class DictGrowth {
 public:
  // Notes one more dict with these keys. Throws CheckpointError (kCorrupt) when the tables of all dicts together would
  // be far larger than their keys need.
  void add(const std::vector<c10::IValue>& keys);

  // The dict of these keys and values, noted before it is made. If two values have the same key, the last counts.
  c10::impl::GenericDict make(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries);

 private:
  std::uint64_t keys_ = 0;
  std::uint64_t places_ = 0;
  std::uint64_t key_bytes_ = 0;  // a short file can use a long text as a key many times, and each is hashed
};

}  // namespace lockstep::checkpoint
