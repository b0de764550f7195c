// One step of an optimizer, compiled once for each instruction set with
//   LOCKSTEP_STEP_KERNEL   name of the function to define
//   LOCKSTEP_VECTOR_BYTES  width of a vector
//
// Which products are rounded before they are added, and which are not (fma), is as the compiler of LibTorch has made
// its kernels: it contracts a * b + c where it can. Like reduce/reduce_kernels.inl, this file calls no inline function
// of a header other than intrinsics, and is compiled without contraction of its own.
#include <cstddef>

#include "step_kernels.h"

#if LOCKSTEP_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::nn_detail {
namespace {

using Vector = float __attribute__((vector_size(LOCKSTEP_VECTOR_BYTES)));
constexpr std::size_t kLanes = LOCKSTEP_VECTOR_BYTES / sizeof(float);

LOCKSTEP_INLINE Vector load(const float* from) {
  Vector result;
  __builtin_memcpy(&result, from, sizeof(result));
  return result;
}

LOCKSTEP_INLINE void store(float* to, Vector vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

LOCKSTEP_INLINE Vector all(float value) {
  return Vector{} + value;
}

// a * b + c
LOCKSTEP_INLINE Vector madd(Vector a, Vector b, Vector c) {
#if LOCKSTEP_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif LOCKSTEP_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

LOCKSTEP_INLINE Vector root(Vector a) {
#if LOCKSTEP_VECTOR_BYTES == 64
  return _mm512_sqrt_ps(a);
#elif LOCKSTEP_VECTOR_BYTES == 32
  return _mm256_sqrt_ps(a);
#else
  for (std::size_t i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}

// A NaN where one of them is a NaN.
LOCKSTEP_INLINE Vector larger(Vector a, Vector b) {
  const Vector more = a > b ? a : b;
  using Words = decltype(a != a);
  const Words is_nan = (a != a) | (b != b);
  Words bits;
  __builtin_memcpy(&bits, &more, sizeof(bits));
  bits |= is_nan;
  Vector result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

LOCKSTEP_INLINE void step_sgd(const StepNumbers& now, float* values, const float* gradients, float* momenta) {
  Vector value = load(values);
  Vector gradient = load(gradients);
  if (now.decays) gradient = madd(value, all(now.decay), gradient);
  if (now.momentum) {
    const Vector momentum = now.first ? gradient : madd(gradient, all(now.take), load(momenta) * now.keep);
    store(momenta, momentum);
    gradient = now.nesterov ? madd(momentum, all(now.keep), gradient) : momentum;
  }
  store(values, madd(gradient, all(now.rate), value));
}

LOCKSTEP_INLINE void step_adam(const StepNumbers& now, float* values, const float* gradients, float* means,
                               float* squares, float* most) {
  Vector value = load(values);
  Vector gradient = load(gradients);
  if (now.decays) {
    if (now.kind == StepKind::kAdam) {
      gradient = madd(value, all(now.decay), gradient);
    } else {
      value = value * now.decay;
    }
  }
  const Vector old_mean = now.first ? Vector{} : load(means);
  const bool is_small = (now.take < 0 ? -now.take : now.take) < 0.5F;
  const Vector mean =
      madd(all(is_small ? now.take : now.take - 1), gradient - old_mean, is_small ? old_mean : gradient);
  const Vector old_square = now.first ? Vector{} : load(squares);
  const Vector square = madd(gradient * now.take_square, gradient, old_square * now.keep);
  store(means, mean);
  store(squares, square);
  Vector under_root = square;
  if (now.amsgrad) {
    under_root = larger(now.first ? Vector{} : load(most), square);
    store(most, under_root);
  }
  store(values, value + mean * now.rate / (root(under_root) / now.root_divisor + now.eps));
}

LOCKSTEP_INLINE void step_adagrad(const StepNumbers& now, float* values, const float* gradients, float* sums) {
  const Vector value = load(values);
  Vector gradient = load(gradients);
  if (now.decays) gradient = madd(value, all(now.decay), gradient);
  const Vector sum = madd(gradient, gradient, load(sums));
  store(sums, sum);
  store(values, value - gradient * now.rate / (root(sum) + now.eps));
}

}  // namespace

void LOCKSTEP_STEP_KERNEL(const StepRequest& request) {
  const StepNumbers now = request.numbers;
  float* const values = request.values;
  const float* const gradient = request.gradient;
  float* const first = request.state[0];
  float* const second = request.state[1];
  float* const third = request.state[2];
  const std::size_t count = request.count;
  switch (now.kind) {
    case StepKind::kSgd:
      for (std::size_t i = 0; i < count; i += kLanes) step_sgd(now, values + i, gradient + i, first + i);
      return;
    case StepKind::kAdam:
    case StepKind::kAdamW:
      for (std::size_t i = 0; i < count; i += kLanes)
        step_adam(now, values + i, gradient + i, first + i, second + i, third + i);
      return;
    case StepKind::kAdagrad:
      for (std::size_t i = 0; i < count; i += kLanes) step_adagrad(now, values + i, gradient + i, first + i);
      return;
  }
}

}  // namespace lockstep::nn_detail
#undef LOCKSTEP_INLINE
