// Reductions in the plainest form, one element at a time, to check the kernels against.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "lockstep/reduce/reduce.h"

namespace lockstep::comm::reference {

// A binary float of 16 bits with `Mantissa` bits after the point.
template <int Mantissa>
struct SmallFloat {
  static constexpr int kExponentBits = 15 - Mantissa;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kSpecial = (1 << kExponentBits) - 1;  // exponent of infinity and NaN

  static float decode(std::uint16_t bits) {
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    const int exponent = (bits & 0x7FFF) >> Mantissa;
    const int mantissa = bits & ((1 << Mantissa) - 1);
    if (exponent == kSpecial) {
      return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - kBias - Mantissa);
    return sign * std::ldexp(static_cast<float>(mantissa + (1 << Mantissa)), exponent - kBias - Mantissa);
  }

  // Nearest, ties to even: std::nearbyint rounds, in units of the last place.
  static std::uint16_t encode(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | (kSpecial << Mantissa) | (1 << (Mantissa - 1));
    const double magnitude = std::fabs(static_cast<double>(value));
    if (std::isinf(magnitude)) return sign | (kSpecial << Mantissa);
    int exponent = magnitude == 0 ? 1 - kBias : std::max(std::ilogb(magnitude), 1 - kBias);
    double units = std::nearbyint(std::ldexp(magnitude, Mantissa - exponent));
    if (units >= (2 << Mantissa)) units /= 2, ++exponent;
    if (exponent > kBias) return sign | (kSpecial << Mantissa);
    const int whole = static_cast<int>(units);
    const int biased = whole < (1 << Mantissa) ? 0 : exponent + kBias;
    return sign | static_cast<std::uint16_t>(biased << Mantissa) | (whole & ((1 << Mantissa) - 1));
  }
};

// A codec has: Stored, the type in memory; Value, the type for arithmetic.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value decode(Stored stored) { return stored; }
  static Stored encode(Value value) { return value; }
};
template <int Mantissa>
struct Small {
  using Stored = std::uint16_t;
  using Value = float;
  static Value decode(Stored stored) { return SmallFloat<Mantissa>::decode(stored); }
  static Stored encode(Value value) { return SmallFloat<Mantissa>::encode(value); }
};
struct SmallComplex {
  using Stored = std::uint32_t;
  using Value = std::complex<float>;
  static Value decode(Stored stored) {
    return {SmallFloat<10>::decode(static_cast<std::uint16_t>(stored)),
            SmallFloat<10>::decode(static_cast<std::uint16_t>(stored >> 16))};
  }
  static Stored encode(Value value) {
    return SmallFloat<10>::encode(value.real()) | static_cast<Stored>(SmallFloat<10>::encode(value.imag())) << 16;
  }
};
struct Bool {
  using Stored = std::uint8_t;
  using Value = bool;
  static Value decode(Stored stored) { return stored != 0; }
  static Stored encode(Value value) { return value ? 1 : 0; }
};

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
T combine_bits(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBand) return a & b;
    if (op == ReduceOp::kBor) return a | b;
    return a ^ b;
  }
  return a;
}

template <class T>
T combine_ordered(ReduceOp op, T a, T b) {
  if constexpr (!IsComplex<T>::value) {
    if (is_nan(b)) return b;
    if (op == ReduceOp::kMin ? b < a : b > a) return b;
  }
  return a;
}

template <class T>
T multiply(T a, T b) {
  if constexpr (IsComplex<T>::value) {
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: return std::is_same_v<T, bool> ? static_cast<T>(a != T{} || b != T{}) : add(a, b);
    case ReduceOp::kProduct: return multiply(a, b);
    case ReduceOp::kMin:
    case ReduceOp::kMax: return combine_ordered(op, a, b);
    default: return combine_bits(op, a, b);
  }
}

// Integers are added in 64 bits.
template <class T>
T mean(const std::vector<T>& values) {
  if constexpr (IsComplex<T>::value || std::is_floating_point_v<T>) {
    T sum = values[0];
    for (std::size_t i = 1; i < values.size(); ++i) sum = sum + values[i];
    if constexpr (IsComplex<T>::value) {
      const auto divisor = static_cast<typename T::value_type>(values.size());
      return T(sum.real() / divisor, sum.imag() / divisor);
    } else {
      return sum / static_cast<T>(values.size());
    }
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    std::uint64_t sum = 0;
    for (const T value : values) sum += static_cast<std::uint64_t>(static_cast<Wide>(value));
    return static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(values.size()));
  }
}

template <class T>
T scale(T value, double factor) {
  if constexpr (IsComplex<T>::value) {
    const auto scalar = static_cast<typename T::value_type>(factor);
    return T(value.real() * scalar, value.imag() * scalar);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    return value;
  }
}

// Numbers of all sizes; about every eighth is a special one.
template <class T>
T arbitrary(std::mt19937& random) {
  if constexpr (IsComplex<T>::value) {
    using Part = typename T::value_type;
    return T(std::uniform_real_distribution<Part>(-3, 3)(random), std::uniform_real_distribution<Part>(-3, 3)(random));
  } else if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    const T specials[] = {
        Limits::infinity(),   -Limits::infinity(),       Limits::quiet_NaN(), T(0),          -T(0),
        Limits::denorm_min(), -3 * Limits::denorm_min(), Limits::min(),       Limits::max(), T(65504)};
    if (random() % 8 == 0) return specials[random() % std::size(specials)];
    return std::ldexp(std::uniform_real_distribution<T>(-2, 2)(random), static_cast<int>(random() % 24) - 20);
  } else {
    return static_cast<T>((static_cast<std::uint64_t>(random()) << 32) | random());
  }
}

using Bytes = std::vector<std::byte>;

template <class Codec>
struct Reference {
  using Stored = typename Codec::Stored;

  static Stored at(const Bytes& bytes, std::size_t i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    return stored;
  }

  static Bytes fill(std::size_t count, std::mt19937& random) {
    Bytes bytes(count * sizeof(Stored));
    for (std::size_t i = 0; i < count; ++i) {
      const Stored stored = Codec::encode(arbitrary<typename Codec::Value>(random));
      std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
    }
    return bytes;
  }

  static Bytes reduce(const Reduction& reduction, const std::vector<Bytes>& inputs) {
    Bytes result(inputs[0].size());
    const bool scaled = reduction.op == ReduceOp::kPremulSum;
    for (std::size_t i = 0; i < result.size() / sizeof(Stored); ++i) {
      std::vector<typename Codec::Value> values;
      for (const Bytes& input : inputs) {
        const auto value = Codec::decode(at(input, i));
        values.push_back(scaled ? scale(value, reduction.factor) : value);
      }
      typename Codec::Value value = reduction.op == ReduceOp::kAvg ? mean(values) : values[0];
      if (reduction.op != ReduceOp::kAvg) {
        for (std::size_t k = 1; k < values.size(); ++k)
          value = combine<typename Codec::Value>(reduction.op, value, values[k]);
      }
      const Stored stored = Codec::encode(value);
      std::memcpy(result.data() + i * sizeof stored, &stored, sizeof stored);
    }
    return result;
  }

  // Bitwise the same, any NaN for any other.
  static bool same(const Bytes& a, const Bytes& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size() / sizeof(Stored); ++i) {
      const std::size_t place = i * sizeof(Stored);
      if (std::memcmp(a.data() + place, b.data() + place, sizeof(Stored)) == 0) continue;
      if (!is_nan(Codec::decode(at(a, i))) || !is_nan(Codec::decode(at(b, i)))) return false;
    }
    return true;
  }
};

// Calls visit(Reference<...>{}) for the type.
template <class Visitor>
auto visit(DataType type, const Visitor& visitor) {
  switch (type) {
    case DataType::kUInt8: return visitor(Reference<Plain<std::uint8_t>>{});
    case DataType::kInt8: return visitor(Reference<Plain<std::int8_t>>{});
    case DataType::kInt16: return visitor(Reference<Plain<std::int16_t>>{});
    case DataType::kInt32: return visitor(Reference<Plain<std::int32_t>>{});
    case DataType::kInt64: return visitor(Reference<Plain<std::int64_t>>{});
    case DataType::kUInt16: return visitor(Reference<Plain<std::uint16_t>>{});
    case DataType::kUInt32: return visitor(Reference<Plain<std::uint32_t>>{});
    case DataType::kUInt64: return visitor(Reference<Plain<std::uint64_t>>{});
    case DataType::kFloat16: return visitor(Reference<Small<10>>{});
    case DataType::kBFloat16: return visitor(Reference<Small<7>>{});
    case DataType::kFloat32: return visitor(Reference<Plain<float>>{});
    case DataType::kFloat64: return visitor(Reference<Plain<double>>{});
    case DataType::kComplex32: return visitor(Reference<SmallComplex>{});
    case DataType::kComplex64: return visitor(Reference<Plain<std::complex<float>>>{});
    case DataType::kComplex128: return visitor(Reference<Plain<std::complex<double>>>{});
    default: return visitor(Reference<Bool>{});
  }
}

}  // namespace lockstep::comm::reference
