#include "dtype_names.h"

#include <algorithm>
#include <array>

namespace lockstep::checkpoint {
namespace {

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

template <typename Matches>
const DtypeNames* find(Matches matches) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(), matches);
  return found == kDtypes.end() ? nullptr : &*found;
}

}  // namespace

const DtypeNames* find_dtype(std::string_view name) {
  return find([&](const DtypeNames& known) { return known.name == name; });
}

const DtypeNames* find_dtype(torch::ScalarType dtype) {
  return find([&](const DtypeNames& known) { return known.dtype == dtype; });
}

}  // namespace lockstep::checkpoint
