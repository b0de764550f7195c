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
// Of LibTorch's kernels, also on processors with AVX-512. The last elements of a parameter, which fill no vector of
// theirs, are its rest: LibTorch steps these one by one, and rounds other products.
constexpr std::size_t kTheirLanes = 8;

// V, here and below: Vector, or float for elements that fill no unit.
template <typename V>
LOCKSTEP_INLINE V load(const float* from) {
  V result;
  __builtin_memcpy(&result, from, sizeof(result));
  return result;
}

template <typename V>
LOCKSTEP_INLINE void store(float* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

template <typename V>
LOCKSTEP_INLINE V all(float value) {
  return V{} + value;
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
LOCKSTEP_INLINE float madd(float a, float b, float c) {
#if LOCKSTEP_VECTOR_BYTES > 16
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

LOCKSTEP_INLINE float root(float a) {
  return __builtin_sqrtf(a);
}
LOCKSTEP_INLINE Vector root(Vector a) {
#if LOCKSTEP_VECTOR_BYTES == 64
  return _mm512_maskz_sqrt_ps(0xffff, a);  // gcc 12 warns of _mm512_sqrt_ps: uninitialized lanes that nobody sees
#elif LOCKSTEP_VECTOR_BYTES == 32
  return _mm256_sqrt_ps(a);
#else
  for (std::size_t i = 0; i < kLanes; ++i) a[i] = root(a[i]);
  return a;
#endif
}

// A NaN where one of them is a NaN.
LOCKSTEP_INLINE float larger(float a, float b) {
  return a != a || a > b ? a : b;
}
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

// a * b + old * keep: one of the products is rounded. `rest`, here and below: this is of the rest of a parameter.
template <typename V>
LOCKSTEP_INLINE V add_to_old(V a, V b, V old, float keep, bool rest) {
  return rest ? madd(old, all<V>(keep), a * b) : madd(a, b, old * keep);
}

template <typename V>
LOCKSTEP_INLINE void step_sgd(const StepNumbers& now, float* values, V gradient, float* momenta, bool rest) {
  const V value = load<V>(values);
  if (now.decays) gradient = madd(value, all<V>(now.decay), gradient);
  if (now.momentum) {
    const V momentum = now.first ? gradient : add_to_old(gradient, all<V>(now.take), load<V>(momenta), now.keep, rest);
    store(momenta, momentum);
    gradient = now.nesterov ? madd(momentum, all<V>(now.keep), gradient) : momentum;
  }
  store(values, madd(gradient, all<V>(now.rate), value));
}

template <typename V>
LOCKSTEP_INLINE void step_adam(const StepNumbers& now, float* values, V gradient, float* means, float* squares,
                               float* most, bool rest) {
  V value = load<V>(values);
  if (now.decays) {
    if (now.kind == StepKind::kAdam) {
      gradient = madd(value, all<V>(now.decay), gradient);
    } else {
      value = value * now.decay;
    }
  }
  const V old_mean = now.first ? V{} : load<V>(means);
  const bool is_small = (now.take < 0 ? -now.take : now.take) < 0.5F;
  const V mean = madd(all<V>(is_small ? now.take : now.take - 1), gradient - old_mean, is_small ? old_mean : gradient);
  const V old_square = now.first ? V{} : load<V>(squares);
  const V square = add_to_old(gradient * now.take_square, gradient, old_square, now.keep, rest);
  store(means, mean);
  store(squares, square);
  V under_root = square;
  if (now.amsgrad) {
    const V old_most = now.first ? V{} : load<V>(most);
    under_root = rest ? (old_most < square ? square : old_most) : larger(old_most, square);
    store(most, under_root);
  }
  store(values, value + mean * now.rate / (root(under_root) / now.root_divisor + now.eps));
}

template <typename V>
LOCKSTEP_INLINE void step_adagrad(const StepNumbers& now, float* values, V gradient, float* sums) {
  const V value = load<V>(values);
  if (now.decays) gradient = madd(value, all<V>(now.decay), gradient);
  const V sum = madd(gradient, gradient, load<V>(sums));
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

  template <typename V>
  LOCKSTEP_INLINE V at(std::size_t place) const {
    V sum = load<V>(gradients[0] + place);
    for (std::size_t i = 1; i < count; ++i) sum = sum + load<V>(gradients[i] + place);
    if (count > 1) sum = factor != 0 ? sum * factor : sum / static_cast<float>(count);
    return scale != 1 ? sum * scale : sum;
  }
  LOCKSTEP_INLINE void prefetch(std::size_t place) const {
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(gradients[i] + place);
  }
};

// Saves a unit of the tensors that the step changes, or the elements that fill no unit, then tells that they are being
// changed.
template <int kTensors, typename V>
LOCKSTEP_INLINE void save(const StepRequest& request, const float* const* tensors, std::size_t begin,
                          std::size_t count) {
  const std::size_t unit = begin / kStepUnit;
  float(*const saved)[kStepUnit] = request.undo->saved[(request.first_unit + unit) % 2];
  for (int which = 0; which < kTensors; ++which) {
    for (std::size_t i = 0; i < count; i += sizeof(V) / sizeof(float))
      store(saved[which] + i, load<V>(tensors[which] + begin + i));
  }
  __atomic_store_n(request.word, request.first_word + unit * kUnitWord, __ATOMIC_RELEASE);
#if !defined(__SANITIZE_THREAD__)           // ThreadSanitizer does not support fences
  __atomic_thread_fence(__ATOMIC_RELEASE);  // no change comes before the word
#endif
}

// How far ahead elements are brought into the cache: the processor's own prefetchers do this for fewer streams only,
// and not at the beginning of a tile.
constexpr std::size_t kAhead = 512;

template <int kTensors, typename Step>
LOCKSTEP_INLINE void each_unit(const StepRequest& request, Step step) {
  const StepRequest now = request;
  const Mean mean(request);
  const float* const tensors[] = {now.values, now.state[0], now.state[1], now.state[2]};
  std::size_t begin = 0;
  for (; begin + kStepUnit <= now.count; begin += kStepUnit) {
    mean.prefetch(begin + kAhead);
    for (int which = 0; which < kTensors; ++which) __builtin_prefetch(tensors[which] + begin + kAhead);
    save<kTensors, Vector>(now, tensors, begin, kStepUnit);
    for (std::size_t i = begin; i < begin + kStepUnit; i += kLanes) step(i, mean.at<Vector>(i), false);
  }
  if (begin == now.count) return;
  const std::size_t left = now.count - begin;
  save<kTensors, float>(now, tensors, begin, left);
  const std::size_t rest = begin + left / kTheirLanes * kTheirLanes;
  for (; begin < rest; ++begin) step(begin, mean.at<float>(begin), false);
  for (; begin < now.count; ++begin) step(begin, mean.at<float>(begin), true);
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
      return each(request,
                  [&](std::size_t i, auto mean, bool rest) { step_sgd(now, values + i, mean, first + i, rest); });
    case StepKind::kAdam:
    case StepKind::kAdamW:
      return each(request, [&](std::size_t i, auto mean, bool rest) {
        step_adam(now, values + i, mean, first + i, second + i, third + i, rest);
      });
    case StepKind::kAdagrad:
      return each(request, [&](std::size_t i, auto mean, bool) { step_adagrad(now, values + i, mean, first + i); });
  }
}

}  // namespace lockstep::nn_detail
#undef LOCKSTEP_INLINE
