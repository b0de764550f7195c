// Python's names of dtypes ("float32") and of the storages that torch.save writes them with.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string_view>

namespace lockstep::checkpoint {

struct DtypeNames {
  torch::ScalarType dtype;
  std::string_view name;
  std::string_view storage;  // "FloatStorage"; empty for newer dtypes, which have none of their own
};

// nullptr for a dtype that files cannot hold (quantized ones).
const DtypeNames* find_dtype(std::string_view name);
const DtypeNames* find_dtype(torch::ScalarType dtype);

}  // namespace lockstep::checkpoint
