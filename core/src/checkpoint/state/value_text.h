// Plain values of Python's kinds (numbers, text, None, lists, tuples, dicts; no tensors) as text, for the metadata of a
// checkpoint: JSON, in which these stand for what JSON lacks:
//
//   {"tuple": [1, 2]}   {"dict": [["key", 1], [2, "value"]]}   {"float": "inf"}
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>

#include "dict_growth.h"

namespace lockstep::checkpoint {

// Throws CheckpointError (kUnsupported) for a value of another kind.
std::string text_of_value(const c10::IValue& value);

// Throws CheckpointError (kCorrupt). `growth` notes its dicts: one for all texts of a file.
c10::IValue value_of_text(std::string_view text, DictGrowth& growth);
inline c10::IValue value_of_text(std::string_view text) {
  DictGrowth growth;
  return value_of_text(text, growth);
}

}  // namespace lockstep::checkpoint
