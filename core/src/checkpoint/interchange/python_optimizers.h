// The kinds of optimizers that LibTorch and Python both have, and how to read the options in Python's
// optimizer.state_dict().
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

struct PythonKind {
  std::string_view name;
  std::vector<std::string_view> own;   // options that no optimizer of another kind has together
  std::vector<const char*> off;        // options that LibTorch lacks, written as False
  std::vector<const char*> automatic;  // options that LibTorch lacks, written as None
};

// Throws CheckpointError (kUnsupported) for another name.
const PythonKind& python_kind(std::string_view name);

// The value of a dict under this key, if it has one.
std::optional<c10::IValue> entry_under(const c10::impl::GenericDict& dict, std::string_view key);

// The error (kMismatch) of a dict that is no optimizer's state, or that of another one.
CheckpointError mismatch(const std::string& what);

// The text of a number, also of one in a tensor without dimensions; empty for anything else.
std::string number_text(const c10::IValue& value);

// Adds an option of a group under `prefix`, if it is a number; "betas" becomes two.
void read_option(TensorFile& file, const std::string& prefix, const std::string& name, const c10::IValue& value);

}  // namespace lockstep::checkpoint
