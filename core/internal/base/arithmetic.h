// Arithmetic of whole numbers.
#pragma once

#include <concepts>
#include <type_traits>

namespace lockstep {

// How many times `b` are needed to cover `a`. Both are at least 0, and `b` is not 0.
template <std::integral T>
constexpr T ceil_divide(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

// The smallest multiple of `b` that is not below `a`.
template <std::integral T>
constexpr T round_up(T a, std::type_identity_t<T> b) {
  return ceil_divide(a, b) * b;
}

}  // namespace lockstep
