#include "crc32.h"

#include <zlib.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::checkpoint {
namespace {

std::uint32_t by_tables(std::uint32_t crc, const unsigned char* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(::crc32_z(crc, bytes, count));
}

#if defined(__x86_64__)

// After "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others, Intel, 2009). The
// constants are powers of x modulo the polynomial of CRC-32, bits reversed: x^2080 and x^2016 move 2048 bits ahead,
// x^544 and x^480 512 bits, x^160 and x^96 128 bits, x^64 reduces to 64 bits; then the polynomial and its reciprocal
// for Barrett's reduction.
constexpr std::size_t kLanes = 64;        // bytes that one step takes
constexpr std::size_t kWideLanes = 256;   // the same with AVX-512
constexpr std::size_t kWorthWide = 1024;  // bytes

// Bytes that have the same CRC as all bytes so far, where that of no bytes is 0.
struct Folded {
  alignas(64) unsigned char bytes[kLanes];
};

[[gnu::target("pclmul,sse4.1")]] inline __m128i load(const unsigned char* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

[[gnu::target("pclmul,sse4.1")]] inline __m128i fold(__m128i lane, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

[[gnu::target("avx512f,vpclmulqdq")]] inline __m512i fold_wide(__m512i lane, __m512i by, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  const __m512i low = _mm512_clmulepi64_epi128(lane, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(lane, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, kXorOfThree);
}

// `count` is a multiple of kWideLanes, and not 0. `crc` is inverted, as inside of the algorithm.
[[gnu::target("avx512f,vpclmulqdq")]] Folded fold_wide(std::uint32_t crc, const unsigned char* bytes,
                                                       std::size_t count) {
  const __m512i by_2048 = _mm512_set_epi64(0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a,
                                           0x1322d1430, 0x11542778a);
  const __m512i by_512 = _mm512_set_epi64(0x1c6e41596, 0x154442bd4, 0x1c6e41596, 0x154442bd4, 0x1c6e41596, 0x154442bd4,
                                          0x1c6e41596, 0x154442bd4);
  __m512i lanes[4];
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = _mm512_loadu_si512(bytes + 64 * i);
  lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (std::size_t at = kWideLanes; at < count; at += kWideLanes) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[i] = fold_wide(lanes[i], by_2048, _mm512_loadu_si512(bytes + at + 64 * i));
    }
  }
  for (std::size_t i = 1; i < 4; ++i) lanes[i] = fold_wide(lanes[i - 1], by_512, lanes[i]);
  Folded folded;
  _mm512_store_si512(folded.bytes, lanes[3]);
  return folded;
}

// The CRC of all bytes so far and of `count` more, a multiple of 16; inverted.
[[gnu::target("pclmul,sse4.1")]] std::uint32_t reduce(const Folded& folded, const unsigned char* bytes,
                                                      std::size_t count) {
  const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  __m128i lanes[4];
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = load(folded.bytes + 16 * i);
  for (; count >= kLanes; bytes += kLanes, count -= kLanes) {
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = fold(lanes[i], by_512, load(bytes + 16 * i));
  }
  __m128i all = lanes[0];
  for (std::size_t i = 1; i < 4; ++i) all = fold(all, by_128, lanes[i]);
  for (; count > 0; bytes += 16, count -= 16) all = fold(all, by_128, load(bytes));

  // 128 bits to 64, and 64 to 32.
  const __m128i mask = _mm_setr_epi32(~0, 0, ~0, 0);
  all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by_128, 0x10));
  const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124);
  all = _mm_xor_si128(_mm_srli_si128(all, 4), _mm_clmulepi64_si128(_mm_and_si128(all, mask), by_64, 0x00));
  const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(all, mask), polynomial, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, mask), polynomial, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(all, quotient), 1));
}

// `count` is a multiple of 16, and at least kLanes.
std::uint32_t by_multiplication(std::uint32_t crc, const unsigned char* bytes, std::size_t count, bool wide) {
  if (wide && count >= kWorthWide) {
    const std::size_t whole = count / kWideLanes * kWideLanes;
    return reduce(fold_wide(crc, bytes, whole), bytes + whole, count - whole);
  }
  Folded folded;
  std::memcpy(folded.bytes, bytes, kLanes);
  for (std::size_t i = 0; i < sizeof(crc); ++i) folded.bytes[i] ^= static_cast<unsigned char>(crc >> (8 * i));
  return reduce(folded, bytes + kLanes, count - kLanes);
}

bool can_multiply() {
  static const bool can = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  return can;
}

bool can_multiply_wide() {
  static const bool can = __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx512f") != 0;
  return can;
}

#endif

}  // namespace

std::uint32_t crc32_of(std::uint32_t crc, const void* bytes, std::size_t count, InstructionSet widest) {
  const auto* at = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
  const std::size_t whole = count / 16 * 16;
  if (whole >= kLanes && widest != InstructionSet::kPortable && can_multiply()) {
    const bool wide = widest == InstructionSet::kAvx512 && can_multiply_wide();
    crc = ~by_multiplication(~crc, at, whole, wide);
    at += whole;
    count -= whole;
  }
#else
  static_cast<void>(widest);
#endif
  return by_tables(crc, at, count);
}

}  // namespace lockstep::checkpoint
