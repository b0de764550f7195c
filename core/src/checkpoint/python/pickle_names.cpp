#include "pickle_names.h"

#include <algorithm>
#include <array>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using enum PickleRole;

constexpr std::array kDtypes = {
    DtypeNames{torch::kFloat, "float32", "FloatStorage"},
    DtypeNames{torch::kDouble, "float64", "DoubleStorage"},
    DtypeNames{torch::kHalf, "float16", "HalfStorage"},
    DtypeNames{torch::kBFloat16, "bfloat16", "BFloat16Storage"},
    DtypeNames{torch::kUInt8, "uint8", "ByteStorage"},
    DtypeNames{torch::kInt8, "int8", "CharStorage"},
    DtypeNames{torch::kInt16, "int16", "ShortStorage"},
    DtypeNames{torch::kInt32, "int32", "IntStorage"},
    DtypeNames{torch::kInt64, "int64", "LongStorage"},
    DtypeNames{torch::kBool, "bool", "BoolStorage"},
    DtypeNames{torch::kComplexFloat, "complex64", "ComplexFloatStorage"},
    DtypeNames{torch::kComplexDouble, "complex128", "ComplexDoubleStorage"},
    DtypeNames{torch::kComplexHalf, "complex32", ""},
    DtypeNames{torch::kUInt16, "uint16", ""},
    DtypeNames{torch::kUInt32, "uint32", ""},
    DtypeNames{torch::kUInt64, "uint64", ""},
    DtypeNames{torch::kFloat8_e4m3fn, "float8_e4m3fn", ""},
    DtypeNames{torch::kFloat8_e5m2, "float8_e5m2", ""},
    DtypeNames{torch::kFloat8_e4m3fnuz, "float8_e4m3fnuz", ""},
    DtypeNames{torch::kFloat8_e5m2fnuz, "float8_e5m2fnuz", ""},
    DtypeNames{torch::kFloat8_e8m0fnu, "float8_e8m0fnu", ""},
};

// All but dtypes and their storages.
constexpr std::array kOtherNames = {
    PickleName{"collections", "OrderedDict", kMapping, ""},
    PickleName{"collections", "Counter", kMapping, ""},
    PickleName{"torch", "Size", kSize, ""},
    PickleName{"torch", "device", kDevice, ""},
    PickleName{"builtins", "complex", kComplex, ""},
    PickleName{"builtins", "set", kSet, ""},
    PickleName{"_codecs", "encode", kEncoded, ""},
    PickleName{"builtins", "bytes", kNoBytes, ""},
    PickleName{"torch._utils", "_rebuild_tensor", kTensor, ""},
    PickleName{"torch._utils", "_rebuild_tensor_v2", kTensor, ""},
    PickleName{"torch._utils", "_rebuild_tensor_v3", kTensorWithDtype, ""},
    PickleName{"torch._utils", "_rebuild_parameter", kParameter, ""},
    PickleName{"torch._utils", "_rebuild_parameter_with_state", kParameterWithState, ""},
    PickleName{"torch._tensor", "_rebuild_from_type_v2", kSubclass, ""},
    PickleName{"torch.tensor", "_rebuild_from_type_v2", kSubclass, ""},
    PickleName{"torch", "Tensor", kClass, ""},
    PickleName{"torch.nn.parameter", "Parameter", kClass, ""},
    PickleName{"torch.storage", "UntypedStorage", kStorage, ""},
    PickleName{"torch", "UntypedStorage", kStorage, ""},
};

std::vector<PickleName> all_names() {
  std::vector<PickleName> names(kOtherNames.begin(), kOtherNames.end());
  for (const DtypeNames& dtype : kDtypes) {
    names.push_back({"torch", dtype.name, kDtype, dtype.name});
    if (!dtype.storage.empty()) names.push_back({"torch", dtype.storage, kStorage, dtype.name});
  }
  return names;
}

// The first that matches, or nullptr.
template <typename List, typename Matches>
auto* find(const List& list, Matches matches) {
  const auto found = std::find_if(list.begin(), list.end(), matches);
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

const DtypeNames* find_dtype(std::string_view name) {
  return find(kDtypes, [&](const DtypeNames& known) { return known.name == name; });
}

const DtypeNames* find_dtype(torch::ScalarType dtype) {
  return find(kDtypes, [&](const DtypeNames& known) { return known.dtype == dtype; });
}

const PickleName* find_pickle_name(std::string_view module, std::string_view name) {
  static const std::vector<PickleName> kAll = all_names();
  if (module == "__builtin__") module = "builtins";  // its name in Python 2, which protocol 2 keeps
  return find(kAll, [&](const PickleName& known) { return known.name == name && known.module == module; });
}

}  // namespace lockstep::checkpoint
