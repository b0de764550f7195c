// Turns the bytes of a buffer into vectors for arithmetic, and back. Part of reduce_kernels.inl.
//
// A Format has: Raw, a vector of the bytes as in memory; Vector, the type that operations work on; decode and encode
// between them. load, store and their partial forms move Raw, so that a partial one never touches a byte outside the
// buffer.

constexpr int kVectorBytes = LOCKSTEP_VECTOR_BYTES;

template <class T, int Bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(Bytes)));
};
template <class T>
using Full = typename VectorOf<T, kVectorBytes>::Type;
template <class T>
using Half = typename VectorOf<T, kVectorBytes / 2>::Type;

template <class To, class From>
LOCKSTEP_INLINE To bit_cast_vector(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// A vector at any address. (With SSE2 only, gcc 12 compiles a memcpy of one into a copy through the stack.)
template <class Raw>
struct Unaligned {
  typedef Raw Type __attribute__((aligned(1), may_alias));
};

template <class Raw>
LOCKSTEP_INLINE Raw load(const std::byte* from) {
  return *reinterpret_cast<const typename Unaligned<Raw>::Type*>(from);
}

template <class Raw>
LOCKSTEP_INLINE void store(std::byte* to, Raw raw) {
  *reinterpret_cast<typename Unaligned<Raw>::Type*>(to) = raw;
}

// The first `bytes` of a vector, 0 < bytes < sizeof(Raw); the others read as zero. The last elements of a buffer go
// through the same vector code as whole blocks, so they get the same bits as they would in its middle.
#if LOCKSTEP_VECTOR_BYTES == 64
template <class Raw>
LOCKSTEP_INLINE Raw load_part(const std::byte* from, std::size_t bytes) {
  const std::uint64_t mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(Raw) == 64) {
    return bit_cast_vector<Raw>(_mm512_maskz_loadu_epi8(mask, from));
  } else {
    return bit_cast_vector<Raw>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from));
  }
}

template <class Raw>
LOCKSTEP_INLINE void store_part(std::byte* to, Raw raw, std::size_t bytes) {
  const std::uint64_t mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(Raw) == 64) {
    _mm512_mask_storeu_epi8(to, mask, bit_cast_vector<__m512i>(raw));
  } else {
    _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask), bit_cast_vector<__m256i>(raw));
  }
}
#else
template <class Raw>
LOCKSTEP_INLINE Raw load_part(const std::byte* from, std::size_t bytes) {
  Raw raw{};
  __builtin_memcpy(&raw, from, bytes);
  return raw;
}

template <class Raw>
LOCKSTEP_INLINE void store_part(std::byte* to, Raw raw, std::size_t bytes) {
  __builtin_memcpy(to, &raw, bytes);
}
#endif

template <class T>
struct Plain {
  using Raw = Full<T>;
  using Vector = Full<T>;
  static LOCKSTEP_INLINE Vector decode(Raw raw) { return raw; }
  static LOCKSTEP_INLINE Raw encode(Vector vector) { return vector; }
};

// Any byte but 0 counts as true; results are 0 or 1.
struct Bool {
  using Raw = Full<std::uint8_t>;
  using Vector = Full<std::uint8_t>;
  static LOCKSTEP_INLINE Vector decode(Raw raw) { return bit_cast_vector<Vector>(raw != 0) & 1; }
  static LOCKSTEP_INLINE Raw encode(Vector vector) { return vector; }
};

// 16-bit numbers are split into those at even and those at odd places, each in the upper half of 32 bits: no number has
// to move to another lane of the vector, neither here nor on the way back.
using Bits = Full<std::uint32_t>;
struct FloatPair {
  Full<float> even, odd;
};
LOCKSTEP_INLINE Bits upper_half_of_even(Bits raw) {
  return raw << 16;
}
LOCKSTEP_INLINE Bits upper_half_of_odd(Bits raw) {
  return raw & 0xFFFF0000u;
}

// Rounds to nearest even; every NaN becomes 0x7FC0, as in LibTorch. AVX512_BF16 is not used, because it flushes
// denormals.
struct BFloat16 {
  using Raw = Bits;
  using Vector = FloatPair;
  static LOCKSTEP_INLINE Vector decode(Raw raw) {
    return {bit_cast_vector<Full<float>>(upper_half_of_even(raw)),
            bit_cast_vector<Full<float>>(upper_half_of_odd(raw))};
  }
  static LOCKSTEP_INLINE Raw encode(Vector vector) {
    return (round(vector.even) >> 16) | (round(vector.odd) & 0xFFFF0000u);
  }
  // The result is in the upper half.
  static LOCKSTEP_INLINE Bits round(Full<float> number) {
    const auto bits = bit_cast_vector<Bits>(number);
    const Bits rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    return number != number ? Bits{} + 0x7FC00000u : rounded;
  }
};

// Rounds to nearest even. A NaN keeps its sign and the upper bits of its payload and becomes quiet, as with F16C.
#if LOCKSTEP_VECTOR_BYTES == 64
struct Float16 {
  using Raw = Half<std::uint16_t>;
  using Vector = Full<float>;
  static LOCKSTEP_INLINE Vector decode(Raw raw) {
    return bit_cast_vector<Vector>(_mm512_maskz_cvtph_ps(0xFFFF, bit_cast_vector<__m256i>(raw)));
  }
  static LOCKSTEP_INLINE Raw encode(Vector vector) {
    return bit_cast_vector<Raw>(
        _mm512_maskz_cvtps_ph(0xFFFF, bit_cast_vector<__m512>(vector), _MM_FROUND_TO_NEAREST_INT));
  }
};
#elif LOCKSTEP_VECTOR_BYTES == 32
struct Float16 {
  using Raw = Half<std::uint16_t>;
  using Vector = Full<float>;
  static LOCKSTEP_INLINE Vector decode(Raw raw) {
    return bit_cast_vector<Vector>(_mm256_cvtph_ps(bit_cast_vector<__m128i>(raw)));
  }
  static LOCKSTEP_INLINE Raw encode(Vector vector) {
    return bit_cast_vector<Raw>(_mm256_cvtps_ph(bit_cast_vector<__m256>(vector), _MM_FROUND_TO_NEAREST_INT));
  }
};
#else
struct Float16 {
  using Raw = Bits;
  using Vector = FloatPair;
  static LOCKSTEP_INLINE Vector decode(Raw raw) {
    return {widen(upper_half_of_even(raw)), widen(upper_half_of_odd(raw))};
  }
  static LOCKSTEP_INLINE Raw encode(Vector vector) { return narrow(vector.even) | (narrow(vector.odd) << 16); }

  // Moves exponent and mantissa to float32's places. A multiplication corrects the exponent's bias and also makes
  // infinity and quiet NaN. Denormals: the mantissa goes into the lowest bits of 0.5, and 0.5 is subtracted.
  static LOCKSTEP_INLINE Full<float> widen(Bits word) {
    using Floats = Full<float>;
    const Bits sign = word & 0x80000000u;
    const Bits twice = word + word;
    const Floats normal = bit_cast_vector<Floats>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
    const Floats denormal = bit_cast_vector<Floats>((twice >> 17) | (126u << 23)) - 0.5f;
    const Bits magnitude = twice < (1u << 27) ? bit_cast_vector<Bits>(denormal) : bit_cast_vector<Bits>(normal);
    return bit_cast_vector<Floats>(sign | magnitude);
  }
  // Lets the processor round: adding a number 2^13 times larger pushes the bits that float16 lacks out of the mantissa.
  // The result is in the lower half.
  static LOCKSTEP_INLINE Bits narrow(Full<float> number) {
    using Floats = Full<float>;
    const Bits word = bit_cast_vector<Bits>(number);
    const Bits twice = word + word;
    const Bits sign = (word >> 16) & 0x8000u;
    const Floats magnitude = bit_cast_vector<Floats>(word & 0x7FFFFFFFu);
    const Floats scaled = (magnitude * 0x1.0p+112f) * 0x1.0p-110f;  // overflows to infinity where float16 does
    const Bits exponent = twice & 0xFF000000u;
    const Bits least = Bits{} + 0x71000000u;  // the smallest normal float16
    const Bits bias = exponent < least ? least : exponent;
    const Bits sum = bit_cast_vector<Bits>(bit_cast_vector<Floats>((bias >> 1) + 0x07800000u) + scaled);
    const Bits result = ((sum >> 13) & 0x7C00u) + (sum & 0x0FFFu);
    const Bits nan = ((word >> 13) & 0x03FFu) | 0x7E00u;
    return sign | (twice > 0xFF000000u ? nan : result);
  }
};
#endif
