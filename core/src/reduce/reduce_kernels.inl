// The reduction kernels, compiled once for each instruction set by reduce_portable.cpp, reduce_avx2.cpp,
// reduce_avx512.cpp with
//   LOCKSTEP_REDUCE_KERNEL  name of the function to define
//   LOCKSTEP_VECTOR_BYTES   width of a vector
//
// Everything in here has internal linkage, and no inline function of a header is called (other than compiler
// intrinsics). Every file that uses an inline function with external linkage emits it, and the linker keeps any one of
// the copies. If that copy came from the AVX-512 file, machines without AVX-512 would crash anywhere in the program. So
// no standard containers, spans or algorithms; from <utility> only types.
//
// Vectors use the compilers' vector extension: the same source serves every width, and operators mean the same as for
// scalars. The files are compiled without contraction of a * b + c, so that the bits of a result do not depend on the
// machine.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "reduce/reduce_kernels.h"

#if LOCKSTEP_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::comm {
namespace {

#include "reduce/reduce_formats.inl"
#include "reduce/reduce_ops.inl"

// A number of buffers that is known at compile time, so that their addresses stay in registers.
template <class Pointer, int N>
struct FixedBuffers {
  Pointer buffers[N];
  explicit LOCKSTEP_INLINE FixedBuffers(Pointer const* from) {
    for (int i = 0; i < N; ++i) buffers[i] = from[i];
  }
  static LOCKSTEP_INLINE std::size_t size() { return N; }
};

template <class Pointer>
struct AnyBuffers {
  Pointer const* buffers;
  std::size_t count;
  LOCKSTEP_INLINE std::size_t size() const { return count; }
};

// All loads of a block come before its stores, so an output may be an input.
template <class Format, class Op, class Inputs, class Outputs>
struct Pass {
  using Raw = typename Format::Raw;
  using Vector = typename Format::Vector;
  static constexpr std::size_t kStep = sizeof(Raw);

  Op op;
  Inputs in;
  Outputs out;

  LOCKSTEP_INLINE Vector prepare(Raw raw) const { return apply_prepare(op, Format::decode(raw)); }
  LOCKSTEP_INLINE Vector combine(Vector a, Vector b) const { return apply_combine(op, a, b); }
  LOCKSTEP_INLINE Raw finish(Vector vector) const { return Format::encode(apply_finish(op, vector)); }
  LOCKSTEP_INLINE Vector fetch(const std::byte* from) const { return prepare(load<Raw>(from)); }

  // Four vectors stay in registers while all inputs are added to them.
  LOCKSTEP_INLINE void four(std::size_t at) const {
    const std::byte* first = in.buffers[0] + at;
    Vector a = fetch(first), b = fetch(first + kStep), c = fetch(first + 2 * kStep), d = fetch(first + 3 * kStep);
    for (std::size_t i = 1; i < in.size(); ++i) {
      const std::byte* next = in.buffers[i] + at;
      a = combine(a, fetch(next));
      b = combine(b, fetch(next + kStep));
      c = combine(c, fetch(next + 2 * kStep));
      d = combine(d, fetch(next + 3 * kStep));
    }
    const Raw ra = finish(a), rb = finish(b), rc = finish(c), rd = finish(d);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::byte* to = out.buffers[i] + at;
      store(to, ra);
      store(to + kStep, rb);
      store(to + 2 * kStep, rc);
      store(to + 3 * kStep, rd);
    }
  }

  LOCKSTEP_INLINE void one(std::size_t at) const {
    Vector a = fetch(in.buffers[0] + at);
    for (std::size_t i = 1; i < in.size(); ++i) a = combine(a, fetch(in.buffers[i] + at));
    const Raw raw = finish(a);
    for (std::size_t i = 0; i < out.size(); ++i) store(out.buffers[i] + at, raw);
  }

  LOCKSTEP_INLINE void part(std::size_t at, std::size_t bytes) const {
    Vector a = prepare(load_part<Raw>(in.buffers[0] + at, bytes));
    for (std::size_t i = 1; i < in.size(); ++i) {
      a = combine(a, prepare(load_part<Raw>(in.buffers[i] + at, bytes)));
    }
    const Raw raw = finish(a);
    for (std::size_t i = 0; i < out.size(); ++i) store_part(out.buffers[i] + at, raw, bytes);
  }

  LOCKSTEP_INLINE void all(std::size_t bytes) const {
    std::size_t at = 0;
    for (; at + 4 * kStep <= bytes; at += 4 * kStep) four(at);
    for (; at + kStep <= bytes; at += kStep) one(at);
    if (at < bytes) part(at, bytes - at);
  }
};

using In = const std::byte*;
using Out = std::byte*;

template <class Format, class Op>
__attribute__((noinline)) void combine(const ReduceRequest& r, Op op) {
  Pass<Format, Op, AnyBuffers<In>, AnyBuffers<Out>>{op, {r.inputs, r.num_inputs}, {r.outputs, r.num_outputs}}.all(
      r.bytes);
}

template <class Format, int N, class Op>
__attribute__((noinline)) void combine_to_all(const ReduceRequest& r, Op op) {
  Pass<Format, Op, FixedBuffers<In, N>, FixedBuffers<Out, N>>{op, FixedBuffers<In, N>(r.inputs),
                                                              FixedBuffers<Out, N>(r.outputs)}
      .all(r.bytes);
}

// For the usual sums of training: few inputs, and as many outputs.
template <class Format, class Op>
LOCKSTEP_INLINE void combine_often(const ReduceRequest& r, Op op) {
  if (r.num_inputs == r.num_outputs) {
    switch (r.num_inputs) {
      case 2: return combine_to_all<Format, 2>(r, op);
      case 3: return combine_to_all<Format, 3>(r, op);
      case 4: return combine_to_all<Format, 4>(r, op);
      default: break;
    }
  }
  combine<Format>(r, op);
}

#include "reduce/reduce_dispatch.inl"

}  // namespace

void LOCKSTEP_REDUCE_KERNEL(const ReduceRequest& request) {
  dispatch(request);
}

}  // namespace lockstep::comm
