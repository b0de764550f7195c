// Values as text, for the metadata of a checkpoint.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "file_values.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// A number to text, from which number_from_text() reads the same bits.
template <typename T>
std::string text_of(T value) {
  return fmt::format("{}", value);
}

// Plain values of Python's kinds (numbers, text, None, lists, tuples, dicts; no tensors) as text, in the metadata of a
// checkpoint: JSON, in which these stand for what JSON lacks:
//
//   {"tuple": [1, 2]}   {"dict": [["key", 1], [2, "value"]]}   {"float": "inf"}
//
// Throws CheckpointError (kUnsupported) for a value of another kind.
std::string text_of_value(const c10::IValue& value);

// Throws CheckpointError (kCorrupt). `growth` notes its dicts: one for all texts of a file.
c10::IValue value_of_text(std::string_view text, DictGrowth& growth);
inline c10::IValue value_of_text(std::string_view text) {
  DictGrowth growth;
  return value_of_text(text, growth);
}

// A program's own values in a file: the text is value.NAME, and its type type.NAME. Files of versions that stored no
// types lack it.
inline constexpr std::string_view kValuePrefix = "value.";

// Replaces the value of this name.
void set_own_value(TensorFile& file, std::string_view name, std::int64_t value);
void set_own_value(TensorFile& file, std::string_view name, double value);
void set_own_value(TensorFile& file, std::string_view name, std::string_view value);
// Throws as text_of_value().
void set_own_value(TensorFile& file, std::string_view name, const c10::IValue& value);

// Whether the file says which type the value has.
bool has_type(const TensorFile& file, std::string_view name);

// The value as text: `text`, or what the value in it is. Throws CheckpointError (kCorrupt) for a value of another kind.
std::string own_text(const TensorFile& file, std::string_view name, const std::string& text);

// The value, whose text is `text`, with the type that it had; without a type, text. Throws CheckpointError (kCorrupt,
// kUnsupported). `growth` notes its dicts.
c10::IValue own_value(const TensorFile& file, std::string_view name, const std::string& text, DictGrowth& growth);

}  // namespace lockstep::checkpoint
