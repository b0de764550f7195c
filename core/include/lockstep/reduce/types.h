// The element types and reductions of the collectives engine. LibTorch is not needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::comm {

// The type of a buffer's elements in reductions. Operations that only move data accept any type.
enum class DataType : std::uint8_t {
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
  kComplex32,  // two float16
  kBool,
  kByte,  // opaque: may be moved, never reduced; one byte per element
};
inline constexpr int kNumDataTypes = 17;

// Values and names follow c10d::ReduceOp. kSum and kAvg of float types add in rank order within a machine, then in the
// order of machines (docs/collectives.md, "Order of sums"). So the result is bitwise the same on every rank, and in
// every run with the same ranks on each machine. Half and bfloat16 add in float32 and round once within a machine, and
// once more between machines. kAvg of integers adds in 64 bits and truncates the quotient: only sums of kInt64 and
// kUInt64 can wrap.
// kBool: sum and max are "or", product and min are "and". kMin and kMax pass a NaN on.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };
inline constexpr int kNumReduceOps = 9;

std::size_t size_of(DataType type);
std::string_view to_string(DataType type);
std::string_view to_string(ReduceOp op);

// Whether `op` is defined for `type`: no bitwise operations on float, no order on complex, no factor on integers.
bool is_supported(DataType type, ReduceOp op);

}  // namespace lockstep::comm
