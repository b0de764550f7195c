// Which gradients travel together: pure functions, the same result on every rank for the same input.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <vector>

namespace lockstep::nn_detail {

struct GradientInfo {
  std::size_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool sparse = false;  // travels on its own
};

// Indices into `gradients`, in the order in which they are expected: one list per bucket, in the order in which buckets
// become complete. A bucket holds one dtype and at least one gradient; it is closed once it has reached its cap.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<GradientInfo>& gradients,
                                                     const std::vector<std::size_t>& order, std::size_t first_cap,
                                                     std::size_t cap);

// Elements from one gradient's start to the next: whole cache lines.
std::size_t padded_elements(const GradientInfo& gradient);

}  // namespace lockstep::nn_detail
