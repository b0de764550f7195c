// A program's own values in a file: the text is value.NAME, and its type type.NAME. Files of versions that stored no
// types lack it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "dict_growth.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

inline constexpr std::string_view kValuePrefix = "value.";

// Replaces the value of this name.
void set_own_value(TensorFile& file, std::string_view name, std::int64_t value);
void set_own_value(TensorFile& file, std::string_view name, double value);
void set_own_value(TensorFile& file, std::string_view name, std::string_view value);
// As in value_text.h. Throws CheckpointError (kUnsupported).
void set_own_value(TensorFile& file, std::string_view name, const c10::IValue& value);

// Whether the file says which type the value has.
bool has_type(const TensorFile& file, std::string_view name);

// The value as text: `text`, or what the value in it is. Throws CheckpointError (kCorrupt) for a value of another kind.
std::string own_text(const TensorFile& file, std::string_view name, const std::string& text);

// The value, whose text is `text`, with the type that it had; without a type, text. Throws CheckpointError (kCorrupt,
// kUnsupported). `growth` notes its dicts.
c10::IValue own_value(const TensorFile& file, std::string_view name, const std::string& text, DictGrowth& growth);

}  // namespace lockstep::checkpoint
