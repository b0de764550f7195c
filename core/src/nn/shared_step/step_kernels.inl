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
  return _mm512_maskz_sqrt_ps(0xffff, a);  // gcc 12 warns of _mm512_sqrt_ps: uninitialized lanes that nobody sees
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

LOCKSTEP_INLINE void step_sgd(const StepNumbers& now, float* values, Vector gradient, float* momenta) {
  Vector value = load(values);
  if (now.decays) gradient = madd(value, all(now.decay), gradient);
  if (now.momentum) {
    const Vector momentum = now.first ? gradient : madd(gradient, all(now.take), load(momenta) * now.keep);
    store(momenta, momentum);
    gradient = now.nesterov ? madd(momentum, all(now.keep), gradient) : momentum;
  }
  store(values, madd(gradient, all(now.rate), value));
}

LOCKSTEP_INLINE void step_adam(const StepNumbers& now, float* values, Vector gradient, float* means, float* squares,
                               float* most) {
  Vector value = load(values);
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

LOCKSTEP_INLINE void step_adagrad(const StepNumbers& now, float* values, Vector gradient, float* sums) {
  const Vector value = load(values);
  if (now.decays) gradient = madd(value, all(now.decay), gradient);
  const Vector sum = madd(gradient, gradient, load(sums));
  store(sums, sum);
  store(values, value - gradient * now.rate / (root(sum) + now.eps));
}

// How the kernels find the mean of some gradients.
struct Mean {
  const float* const* gradients;
  std::size_t count;
  float factor;  // 0: the sum is divided, since a product would round in another way
  float scale;

  explicit LOCKSTEP_INLINE Mean(const StepRequest& request)
      : gradients(request.gradients),
        count(request.num_gradients),
        factor((count & (count - 1)) == 0 ? 1 / static_cast<float>(count) : 0),
        scale(request.scale) {}

  LOCKSTEP_INLINE Vector at(std::size_t place) const {
    Vector sum = load(gradients[0] + place);
    for (std::size_t i = 1; i < count; ++i) sum = sum + load(gradients[i] + place);
    if (count > 1) sum = factor != 0 ? sum * factor : sum / static_cast<float>(count);
    return scale != 1 ? sum * scale : sum;
  }
  LOCKSTEP_INLINE void prefetch(std::size_t place) const {
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(gradients[i] + place);
  }
};

// Saves a unit of the tensors that the step changes, then tells that it is being changed.
template <int kTensors>
LOCKSTEP_INLINE void save(const StepRequest& request, const float* const* tensors, std::size_t unit) {
  float(*const saved)[kStepUnit] = request.undo->saved[(request.first_unit + unit) % 2];
  for (int which = 0; which < kTensors; ++which) {
    for (std::size_t i = 0; i < kStepUnit; i += kLanes)
      store(saved[which] + i, load(tensors[which] + unit * kStepUnit + i));
  }
  __atomic_store_n(request.word, request.first_word + unit * kUnitWord, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_RELEASE);  // no change comes before the word
}

// How far ahead elements are brought into the cache: the processor's own prefetchers do this for fewer streams only,
// and not at the begin of a tile.
constexpr std::size_t kAhead = 512;

template <int kTensors, typename Step>
LOCKSTEP_INLINE void each_unit(const StepRequest& request, Step step) {
  const StepRequest now = request;
  const Mean mean(request);
  const float* const tensors[] = {now.values, now.state[0], now.state[1], now.state[2]};
  for (std::size_t begin = 0; begin < now.count; begin += kStepUnit) {
    mean.prefetch(begin + kAhead);
    for (int which = 0; which < kTensors; ++which) __builtin_prefetch(tensors[which] + begin + kAhead);
    save<kTensors>(now, tensors, begin / kStepUnit);
    for (std::size_t i = begin; i < begin + kStepUnit; i += kLanes) step(i, mean.at(i));
  }
}

template <typename Step>
LOCKSTEP_INLINE void each(const StepRequest& request, Step step) {
  switch (request.numbers.changed) {
    case 1: return each_unit<1>(request, step);
    case 2: return each_unit<2>(request, step);
    case 3: return each_unit<3>(request, step);
    default: return each_unit<4>(request, step);
  }
}

}  // namespace

void LOCKSTEP_STEP_KERNEL(const StepRequest& request) {
  const StepNumbers now = request.numbers;
  float* const values = request.values;
  float* const first = request.state[0];
  float* const second = request.state[1];
  float* const third = request.state[2];
  switch (now.kind) {
    case StepKind::kSgd:
      return each(request, [&](std::size_t i, Vector mean) { step_sgd(now, values + i, mean, first + i); });
    case StepKind::kAdam:
    case StepKind::kAdamW:
      return each(request, [&](std::size_t i, Vector mean) {
        step_adam(now, values + i, mean, first + i, second + i, third + i);
      });
    case StepKind::kAdagrad:
      return each(request, [&](std::size_t i, Vector mean) { step_adagrad(now, values + i, mean, first + i); });
  }
}

}  // namespace lockstep::nn_detail
#undef LOCKSTEP_INLINE
