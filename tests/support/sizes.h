#pragma once

#include <cstddef>

namespace lockstep::test {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace lockstep::test
