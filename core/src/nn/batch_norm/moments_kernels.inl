// Compiled by moments_kernels_portable.cpp, moments_kernels_avx2.cpp and moments_kernels_avx512.cpp with
//   LOCKSTEP_MOMENTS_KERNEL  name of the function to define
//   LOCKSTEP_DOUBLES         doubles of a vector: 2, 4 or 8
// No function with external linkage may be called here; reduce/reduce_kernels.inl says why.
//
// Doubles are added up in kLanes sums side by side, because an addition takes longer than the processor needs to begin
// the next one. Their number does not depend on the vectors, so neither do the bits of the result.
#include <cstdint>

#include "nn/batch_norm/moments_kernels.h"

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::nn_detail {
namespace {

constexpr int kLanes = 16;
constexpr int kVector = LOCKSTEP_DOUBLES;
constexpr int kVectors = kLanes / kVector;
typedef float Floats __attribute__((vector_size(kVector * sizeof(float))));
typedef double Doubles __attribute__((vector_size(kVector * sizeof(double))));

// The sum of term(value) over all values, which `term` gets as doubles.
template <class Term>
LOCKSTEP_INLINE double sum_of(const ChannelPlanes& planes, Term term) {
  Doubles sums[kVectors] = {};
  double rest = 0;
  for (std::int64_t sample = 0; sample < planes.samples; ++sample) {
    const float* const values = planes.first + sample * planes.stride;
    std::int64_t i = 0;
    for (; i + kLanes <= planes.length; i += kLanes) {
      for (int part = 0; part < kVectors; ++part) {
        Floats loaded;
        __builtin_memcpy(&loaded, values + i + part * kVector, sizeof loaded);
        sums[part] += term(__builtin_convertvector(loaded, Doubles));
      }
    }
    for (; i < planes.length; ++i) rest += term(static_cast<double>(values[i]));
  }
  double lanes[kLanes];
  __builtin_memcpy(lanes, sums, sizeof lanes);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0] + rest;
}

struct Value {
  template <class Number>
  LOCKSTEP_INLINE Number operator()(Number value) const {
    return value;
  }
};

struct SquareOfDistance {
  double mean;
  template <class Number>
  LOCKSTEP_INLINE Number operator()(Number value) const {
    const Number apart = value - mean;
    return apart * apart;
  }
};

}  // namespace

Moments LOCKSTEP_MOMENTS_KERNEL(const ChannelPlanes& planes) {
  const double count = static_cast<double>(planes.samples * planes.length);
  const double mean = sum_of(planes, Value{}) / count;
  return {mean, sum_of(planes, SquareOfDistance{mean})};
}

}  // namespace lockstep::nn_detail
