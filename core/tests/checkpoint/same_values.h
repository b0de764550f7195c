// Compares what files of models and runs hold.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "checkpoint/tools/any_file.h"

namespace lockstep::checkpoint {

// Whether both are the same with the same types. Objects of Python that are not read are the same as nothing.
inline bool same_values(const c10::IValue& a, const c10::IValue& b) {
  const auto same_items = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_values);
  };
  if (a.isTensor() && b.isTensor()) {
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() && torch::equal(a.toTensor(), b.toTensor());
  }
  if (a.isList() && b.isList()) return same_items(a.toListRef(), b.toListRef());
  if (a.isTuple() && b.isTuple()) return same_items(a.toTupleRef().elements(), b.toTupleRef().elements());
  if (!a.isGenericDict() || !b.isGenericDict()) return a == b;
  const c10::impl::GenericDict other = b.toGenericDict();
  if (a.toGenericDict().size() != other.size()) return false;
  for (const auto& entry : a.toGenericDict()) {
    if (!other.contains(entry.key()) || !same_values(entry.value(), other.at(entry.key()))) return false;
  }
  return true;
}

// Whether two files, or the values under this key of them, are the same.
inline bool same_files(const std::filesystem::path& first, const std::filesystem::path& second,
                       std::string_view entry = "") {
  return same_values(read_any_file(first, entry).value, read_any_file(second, entry).value);
}

}  // namespace lockstep::checkpoint
