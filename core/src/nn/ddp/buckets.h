// Which gradients share a bucket: pure functions, with the same result on every rank for the same input.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <vector>

namespace lockstep::nn_detail {

struct GradientInfo {
  std::size_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool sparse = false;  // in no bucket
};

// Returns one list per bucket, in the order in which buckets become complete: indices into `gradients`, in the expected
// order. A bucket holds one dtype and at least one gradient, and is closed once it has reached its cap.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<GradientInfo>& gradients,
                                                     const std::vector<std::size_t>& order, std::size_t first_cap,
                                                     std::size_t cap);

// Elements from the start of this gradient to that of the next one: whole cache lines.
std::size_t padded_elements(const GradientInfo& gradient);

}  // namespace lockstep::nn_detail
