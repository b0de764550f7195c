#include "pickle_names.h"

#include <algorithm>
#include <array>

namespace lockstep::checkpoint {
namespace {

using enum PickleRole;

constexpr std::array kNames = {
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
    PickleName{"torch", "FloatStorage", kStorage, "float32"},
    PickleName{"torch", "DoubleStorage", kStorage, "float64"},
    PickleName{"torch", "HalfStorage", kStorage, "float16"},
    PickleName{"torch", "BFloat16Storage", kStorage, "bfloat16"},
    PickleName{"torch", "ByteStorage", kStorage, "uint8"},
    PickleName{"torch", "CharStorage", kStorage, "int8"},
    PickleName{"torch", "ShortStorage", kStorage, "int16"},
    PickleName{"torch", "IntStorage", kStorage, "int32"},
    PickleName{"torch", "LongStorage", kStorage, "int64"},
    PickleName{"torch", "BoolStorage", kStorage, "bool"},
    PickleName{"torch", "ComplexFloatStorage", kStorage, "complex64"},
    PickleName{"torch", "ComplexDoubleStorage", kStorage, "complex128"},
    PickleName{"torch.storage", "UntypedStorage", kStorage, ""},
    PickleName{"torch", "UntypedStorage", kStorage, ""},
    PickleName{"torch", "float32", kDtype, "float32"},
    PickleName{"torch", "float64", kDtype, "float64"},
    PickleName{"torch", "float16", kDtype, "float16"},
    PickleName{"torch", "bfloat16", kDtype, "bfloat16"},
    PickleName{"torch", "uint8", kDtype, "uint8"},
    PickleName{"torch", "int8", kDtype, "int8"},
    PickleName{"torch", "uint16", kDtype, "uint16"},
    PickleName{"torch", "int16", kDtype, "int16"},
    PickleName{"torch", "uint32", kDtype, "uint32"},
    PickleName{"torch", "int32", kDtype, "int32"},
    PickleName{"torch", "uint64", kDtype, "uint64"},
    PickleName{"torch", "int64", kDtype, "int64"},
    PickleName{"torch", "bool", kDtype, "bool"},
    PickleName{"torch", "complex32", kDtype, "complex32"},
    PickleName{"torch", "complex64", kDtype, "complex64"},
    PickleName{"torch", "complex128", kDtype, "complex128"},
    PickleName{"torch", "float8_e4m3fn", kDtype, "float8_e4m3fn"},
    PickleName{"torch", "float8_e5m2", kDtype, "float8_e5m2"},
    PickleName{"torch", "float8_e4m3fnuz", kDtype, "float8_e4m3fnuz"},
    PickleName{"torch", "float8_e5m2fnuz", kDtype, "float8_e5m2fnuz"},
    PickleName{"torch", "float8_e8m0fnu", kDtype, "float8_e8m0fnu"},
};

}  // namespace

const PickleName* find_pickle_name(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";  // its name in Python 2, which protocol 2 keeps
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const PickleName& known) {
    return known.name == name && known.module == module;
  });
  return found == kNames.end() ? nullptr : &*found;
}

}  // namespace lockstep::checkpoint
