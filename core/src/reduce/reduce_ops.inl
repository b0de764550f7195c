// The operations on vectors. Part of reduce_kernels.inl.
//
// An operation has: prepare, applied to every input; combine, applied to the result so far and the next input; finish,
// applied to the result once.

struct Identity {
  template <class V>
  LOCKSTEP_INLINE V prepare(V v) const {
    return v;
  }
  template <class V>
  LOCKSTEP_INLINE V finish(V v) const {
    return v;
  }
};

// Integers are of unsigned types here: they wrap, and the bits are the same as for signed ones.
struct Sum : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return a + b;
  }
};

struct Product : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return a * b;
  }
};

// An ordered comparison is false for NaN. So the second term accepts a NaN, and only another NaN replaces it.
struct Min : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return ((b < a) | (b != b)) ? b : a;
  }
};

struct Max : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return ((b > a) | (b != b)) ? b : a;
  }
};

struct And : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return a & b;
  }
};

struct Or : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return a | b;
  }
};

struct Xor : Identity {
  template <class V>
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return a ^ b;
  }
};

template <class Scalar>
struct ScaledSum : Sum {
  Scalar factor;
  template <class V>
  LOCKSTEP_INLINE V prepare(V v) const {
    return v * factor;
  }
};

// Averages are sum / n, rounded like a division. For n = 2^k a multiplication gives the same bits and is much cheaper.
template <class Scalar>
struct MeanByFactor : Sum {
  Scalar factor;
  template <class V>
  LOCKSTEP_INLINE V finish(V v) const {
    return v * factor;
  }
};

template <class Scalar>
struct MeanByDivision : Sum {
  Scalar divisor;
  template <class V>
  LOCKSTEP_INLINE V finish(V v) const {
    return v / divisor;
  }
};

// (a + bi)(c + di) = (ac - bd) + (ad + bc)i on pairs of lanes.
template <class Scalar>
struct ComplexProduct : Identity {
  using V = Full<Scalar>;

  template <std::size_t... Lane>
  static LOCKSTEP_INLINE V multiply(V x, V y, std::index_sequence<Lane...>) {
    const V real = __builtin_shufflevector(x, x, (Lane & ~std::size_t{1})...);
    const V imaginary = __builtin_shufflevector(x, x, (Lane | 1)...);
    const V swapped = __builtin_shufflevector(y, y, (Lane ^ 1)...);
    const V sign = {(Lane % 2 == 0 ? Scalar(-1) : Scalar(1))...};
    return real * y + sign * (imaginary * swapped);
  }
  LOCKSTEP_INLINE V combine(V a, V b) const {
    return multiply(a, b, std::make_index_sequence<sizeof(V) / sizeof(Scalar)>{});
  }
};

// The operations on the vectors of each format.
template <class Op, class V>
LOCKSTEP_INLINE V apply_prepare(const Op& op, V v) {
  return op.prepare(v);
}
template <class Op>
LOCKSTEP_INLINE FloatPair apply_prepare(const Op& op, FloatPair v) {
  return {op.prepare(v.even), op.prepare(v.odd)};
}
template <class Op, class V>
LOCKSTEP_INLINE V apply_combine(const Op& op, V a, V b) {
  return op.combine(a, b);
}
template <class Op>
LOCKSTEP_INLINE FloatPair apply_combine(const Op& op, FloatPair a, FloatPair b) {
  return {op.combine(a.even, b.even), op.combine(a.odd, b.odd)};
}
// Real parts are even, imaginary parts odd. The same terms in the same order as in ComplexProduct.
LOCKSTEP_INLINE FloatPair apply_combine(const ComplexProduct<float>& /*op*/, FloatPair a, FloatPair b) {
  return {a.even * b.even - a.odd * b.odd, a.even * b.odd + a.odd * b.even};
}
template <class Op, class V>
LOCKSTEP_INLINE V apply_finish(const Op& op, V v) {
  return op.finish(v);
}
template <class Op>
LOCKSTEP_INLINE FloatPair apply_finish(const Op& op, FloatPair v) {
  return {op.finish(v.even), op.finish(v.odd)};
}
