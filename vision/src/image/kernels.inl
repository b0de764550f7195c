// Compiled by kernels_portable.cpp, kernels_avx2.cpp and kernels_avx512.cpp with
//   LOCKSTEP_IMAGE_KERNELS  name of the table to define
//   LOCKSTEP_LANES          32-bit lanes of a vector: 4, 8 or 16
// No function with external linkage may be called here; reduce/reduce_kernels.inl says why.
#include <cstddef>
#include <cstdint>

#include "image/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::data {
namespace {

constexpr int kLanes = LOCKSTEP_LANES;
// Weights are fixed-point numbers with this many bits after the point, as in PIL.
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
typedef std::int32_t Int4 __attribute__((vector_size(16)));
typedef std::uint8_t Byte4 __attribute__((vector_size(4)));
typedef std::uint8_t Byte8 __attribute__((vector_size(8)));
typedef std::uint8_t Byte16 __attribute__((vector_size(16)));
typedef double Double4 __attribute__((vector_size(32)));

template <class T>
inline __attribute__((always_inline)) T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
inline __attribute__((always_inline)) void store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Bytes to lanes and back, limited to 0..255. Not __builtin_convertvector: compilers convert the lanes one by one.
#if LOCKSTEP_LANES == 16
constexpr __mmask16 kAllLanes = 0xffff;  // gcc 12 warns of uninitialized values in the forms without a mask
inline __attribute__((always_inline)) Ints widen(const std::uint8_t* from) {
  return reinterpret_cast<Ints>(_mm512_maskz_cvtepu8_epi32(kAllLanes, load<__m128i>(from)));
}
inline __attribute__((always_inline)) void store_bytes(std::uint8_t* to, Ints value) {
  value = value < 0 ? Ints{} : value;
  store(to, _mm512_maskz_cvtusepi32_epi8(kAllLanes, reinterpret_cast<__m512i>(value)));
}
#elif LOCKSTEP_LANES == 8
inline __attribute__((always_inline)) Ints widen(const std::uint8_t* from) {
  return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<long long>(from))));
}
inline __attribute__((always_inline)) void store_bytes(std::uint8_t* to, Ints value) {
  const auto all = reinterpret_cast<__m256i>(value);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  store(to, _mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
}
#elif defined(__x86_64__)
inline __attribute__((always_inline)) Ints widen(const std::uint8_t* from) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i bytes = _mm_cvtsi32_si128(load<int>(from));
  return reinterpret_cast<Ints>(_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero));
}
inline __attribute__((always_inline)) void store_bytes(std::uint8_t* to, Ints value) {
  const __m128i words = _mm_packs_epi32(reinterpret_cast<__m128i>(value), reinterpret_cast<__m128i>(value));
  store(to, _mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
}
#else
inline __attribute__((always_inline)) Ints widen(const std::uint8_t* from) {
  return __builtin_convertvector(load<Bytes>(from), Ints);
}
inline __attribute__((always_inline)) void store_bytes(std::uint8_t* to, Ints value) {
  value = value < 0 ? Ints{} : value;
  value = value > 255 ? Ints{} + 255 : value;
  store(to, __builtin_convertvector(value, Bytes));
}
#endif

// One pixel as four lanes.
#if defined(__x86_64__)
inline __attribute__((always_inline)) Int4 widen_pixel(const std::uint8_t* from) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i bytes = _mm_cvtsi32_si128(load<int>(from));
  return reinterpret_cast<Int4>(_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero));
}
inline __attribute__((always_inline)) void store_pixel(std::uint8_t* to, Int4 value) {
  const __m128i words = _mm_packs_epi32(reinterpret_cast<__m128i>(value), reinterpret_cast<__m128i>(value));
  store(to, _mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
}
#else
inline __attribute__((always_inline)) Int4 widen_pixel(const std::uint8_t* from) {
  return __builtin_convertvector(load<Byte4>(from), Int4);
}
inline __attribute__((always_inline)) void store_pixel(std::uint8_t* to, Int4 value) {
  value = value < 0 ? Int4{} : value;
  value = value > 255 ? Int4{} + 255 : value;
  store(to, __builtin_convertvector(value, Byte4));
}
#endif

// To the nearest whole number, half to even, for numbers below 2^22: the sum has no bits after the point.
template <class T>
inline __attribute__((always_inline)) T nearest_whole(T value) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  return (value + kMagic) - kMagic;
}

// Two of the four pixels from `from` on (those of an output pixel's next four taps), for each output pixel of a vector:
// words of (first, second) for each of the four bytes.
constexpr int kPixels = kLanes / 4;  // output pixels of a vector
#if LOCKSTEP_LANES == 16
inline __attribute__((always_inline)) __m512i load_taps(const std::uint8_t* in, const std::int32_t* first, int bytes) {
  const auto at = [&](int pixel) { return load<__m128i>(in + std::ptrdiff_t{4} * first[pixel] + bytes); };
  const __m512i pixels = _mm512_zextsi128_si512(at(0));
  return _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(pixels, at(1), 1), at(2), 2), at(3), 3);
}
inline __attribute__((always_inline)) __m512i pair_of(__m512i taps, int pair) {
  const __m512i order = _mm512_set4_epi32(0x80078003, 0x80068002, 0x80058001, static_cast<int>(0x80048000));
  return _mm512_shuffle_epi8(taps, _mm512_add_epi32(order, _mm512_set1_epi32(pair * 0x00080008)));
}
inline __attribute__((always_inline)) Ints times(__m512i pair, const std::int16_t* weights) {
  return reinterpret_cast<Ints>(_mm512_madd_epi16(pair, load<__m512i>(weights)));
}
typedef __m512i Taps;
#elif LOCKSTEP_LANES == 8
inline __attribute__((always_inline)) __m256i load_taps(const std::uint8_t* in, const std::int32_t* first, int bytes) {
  const auto at = [&](int pixel) { return load<__m128i>(in + std::ptrdiff_t{4} * first[pixel] + bytes); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(at(0)), at(1), 1);
}
inline __attribute__((always_inline)) __m256i pair_of(__m256i taps, int pair) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_set_epi32(static_cast<int>(0x80078003), static_cast<int>(0x80068002),
                                                static_cast<int>(0x80058001), static_cast<int>(0x80048000)));
  return _mm256_shuffle_epi8(taps, _mm256_add_epi32(order, _mm256_set1_epi32(pair * 0x00080008)));
}
inline __attribute__((always_inline)) Ints times(__m256i pair, const std::int16_t* weights) {
  return reinterpret_cast<Ints>(_mm256_madd_epi16(pair, load<__m256i>(weights)));
}
typedef __m256i Taps;
#elif defined(__x86_64__)
inline __attribute__((always_inline)) __m128i load_taps(const std::uint8_t* in, const std::int32_t* first, int bytes) {
  return load<__m128i>(in + std::ptrdiff_t{4} * first[0] + bytes);
}
inline __attribute__((always_inline)) __m128i pair_of(__m128i taps, int pair) {
  const __m128i both = pair == 0 ? taps : _mm_srli_si128(taps, 8);
  return _mm_unpacklo_epi8(_mm_unpacklo_epi8(both, _mm_srli_si128(both, 4)), _mm_setzero_si128());
}
inline __attribute__((always_inline)) Ints times(__m128i pair, const std::int16_t* weights) {
  return reinterpret_cast<Ints>(_mm_madd_epi16(pair, load<__m128i>(weights)));
}
typedef __m128i Taps;
#else
inline __attribute__((always_inline)) Byte16 load_taps(const std::uint8_t* in, const std::int32_t* first, int bytes) {
  return load<Byte16>(in + std::ptrdiff_t{4} * first[0] + bytes);
}
inline __attribute__((always_inline)) Byte8 pair_of(Byte16 taps, int pair) {
  return pair == 0 ? __builtin_shufflevector(taps, taps, 0, 1, 2, 3, 4, 5, 6, 7)
                   : __builtin_shufflevector(taps, taps, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline __attribute__((always_inline)) Ints times(Byte8 pair, const std::int16_t* weights) {
  Ints sum;
  for (int byte = 0; byte < 4; ++byte) sum[byte] = pair[byte] * weights[0] + pair[4 + byte] * weights[1];
  return sum;
}
typedef Byte16 Taps;
#endif

// kPairs: of taps; 0: as many as the plan says.
template <int kPairs>
inline __attribute__((always_inline)) void resample_row_of(const HorizontalResampling& plan, const std::uint8_t* in,
                                                           std::uint8_t* out) {
  constexpr int kTogether = HorizontalResampling::kTogether;
  constexpr int kPart = kTogether * HorizontalResampling::kNumbers;
  const int pairs = kPairs > 0 ? kPairs : plan.pairs;
  const std::int16_t* group = plan.weights;
  for (int x = 0; x < plan.width; x += kTogether, group += std::ptrdiff_t{2} * kPart * pairs) {
    for (int part = 0; part < kTogether; part += kPixels) {
      const std::int16_t* weights = group + part * HorizontalResampling::kNumbers;
      Ints high{};
      Ints low = Ints{} + kHalf;
      for (int pair = 0; pair < pairs; pair += 2) {
        const Taps taps = load_taps(in, plan.first + x + part, 8 * pair);
        high += times(pair_of(taps, 0), weights);
        low += times(pair_of(taps, 0), weights + kPart);
        weights += 2 * kPart;
        if (pair + 1 == pairs) break;
        high += times(pair_of(taps, 1), weights);
        low += times(pair_of(taps, 1), weights + kPart);
        weights += 2 * kPart;
      }
      const Ints sum = high * (1 << HorizontalResampling::kLowBits) + low;
      store_bytes(out + std::ptrdiff_t{4} * (x + part), sum >> kWeightBits);
    }
  }
}

void resample_row(const HorizontalResampling& plan, const std::uint8_t* in, std::uint8_t* out) {
  switch (plan.pairs) {
    case 1: return resample_row_of<1>(plan, in, out);
    case 2: return resample_row_of<2>(plan, in, out);
    case 3: return resample_row_of<3>(plan, in, out);
    case 4: return resample_row_of<4>(plan, in, out);
    default: return resample_row_of<0>(plan, in, out);
  }
}

void resample_column(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, int count,
                     std::uint8_t* out) {
  for (int i = 0; i < count; i += kLanes) {
    Ints sum = Ints{} + kHalf;
    for (int t = 0; t < taps; ++t) sum += widen(rows[t] + i) * weights[t];
    store_bytes(out + i, sum >> kWeightBits);
  }
}

inline __attribute__((always_inline)) Ints reversed_lanes(Ints value) {
#if LOCKSTEP_LANES == 16
  return __builtin_shufflevector(value, value, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#elif LOCKSTEP_LANES == 8
  return __builtin_shufflevector(value, value, 7, 6, 5, 4, 3, 2, 1, 0);
#else
  return __builtin_shufflevector(value, value, 3, 2, 1, 0);
#endif
}

template <bool kExact>
inline __attribute__((always_inline)) Floats normalised(const ToFloat& how, int channel, Floats value) {
  if (kExact) return (value / 255.0F - how.mean[channel]) / how.deviation[channel];
  return value * how.scale[channel] + how.offset[channel];
}

template <bool kExact>
void to_float_of(const ToFloat& how, const std::uint8_t* pixels, int count, int channels, bool reversed,
                 float* const planes[3]) {
  int x = 0;
  for (; x + kLanes <= count; x += kLanes) {
    Ints pixel = load<Ints>(pixels + std::ptrdiff_t{4} * (reversed ? count - kLanes - x : x));
    if (reversed) pixel = reversed_lanes(pixel);
    for (int c = 0; c < channels; ++c) {
      store(planes[c] + x, normalised<kExact>(how, c, __builtin_convertvector((pixel >> (8 * c)) & 255, Floats)));
    }
  }
  for (; x < count; ++x) {
    const std::uint8_t* pixel = pixels + std::ptrdiff_t{4} * (reversed ? count - 1 - x : x);
    for (int c = 0; c < channels; ++c) {
      planes[c][x] = normalised<kExact>(how, c, Floats{} + static_cast<float>(pixel[c]))[0];
    }
  }
}

void to_float(const ToFloat& how, const std::uint8_t* pixels, int count, int channels, bool reversed,
              float* const planes[3]) {
  (how.exact ? to_float_of<true> : to_float_of<false>)(how, pixels, count, channels, reversed, planes);
}

#include "image/sampling.inl"  // NOLINT(misc-include-cleaner): in this namespace

void blend(const std::uint8_t* first, const std::uint8_t* second, float factor, bool clip, std::int64_t bytes,
           std::uint8_t* out) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    const float value = static_cast<float>(first[i]) + factor * static_cast<float>(second[i] - first[i]);
    const float cut = value > 0.0F ? (value < 255.0F ? value : 255.0F) : 0.0F;
    out[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(clip ? cut : value));
  }
}

void to_grey(const std::uint8_t* pixels, int count, std::uint8_t* out) {
  for (int i = 0; i < count; ++i) {
    const std::uint8_t* pixel = pixels + std::ptrdiff_t{4} * i;
    const auto grey =
        static_cast<std::uint32_t>((pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
    const std::uint32_t value = grey * 0x01010101U;
    __builtin_memcpy(out + std::ptrdiff_t{4} * i, &value, 4);
  }
}

inline __attribute__((always_inline)) Floats weighted_three(const std::uint8_t* at, float side, float middle) {
  return __builtin_convertvector(widen(at - 4), Floats) * side + __builtin_convertvector(widen(at), Floats) * middle +
         __builtin_convertvector(widen(at + 4), Floats) * side;
}

// Weights of 5 in the middle and 1 around it, divided by 13, with sums in PIL's order.
void smooth(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below, int count,
            std::uint8_t* out) {
  constexpr float kSide = 1.0F / 13.0F;
  constexpr float kMiddle = 5.0F / 13.0F;
  for (int i = 0; i < count; i += kLanes) {
    Floats sum = Floats{} + 0.5F;
    sum += weighted_three(below + i, kSide, kSide);
    sum += weighted_three(row + i, kSide, kMiddle);
    sum += weighted_three(above + i, kSide, kSide);
    store_bytes(out + i, __builtin_convertvector(sum, Ints));
  }
}

void weighted_sum(const float* const* rows, const float* weights, int taps, int count, float* out) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats sum{};
    for (int t = 0; t < taps; ++t) sum += load<Floats>(rows[t] + i) * weights[t];
    store(out + i, sum);
  }
  for (; i < count; ++i) {
    float sum = 0.0F;
    for (int t = 0; t < taps; ++t) sum += rows[t][i] * weights[t];
    out[i] = sum;
  }
}

void to_bytes(const float* values, int count, std::uint8_t* out) {
  for (int i = 0; i < count; i += kLanes) {
    store_bytes(out + i, __builtin_convertvector(nearest_whole(load<Floats>(values + i)), Ints));
  }
}

void extremes(const std::uint8_t* pixels, int count, std::uint8_t low[4], std::uint8_t high[4]) {
  constexpr int kAtOnce = 4;  // pixels
  int i = 0;
  if (count >= kAtOnce) {
    Byte16 least = load<Byte16>(pixels);
    Byte16 most = least;
    for (i = kAtOnce; i + kAtOnce <= count; i += kAtOnce) {
      const Byte16 value = load<Byte16>(pixels + std::ptrdiff_t{4} * i);
      least = value < least ? value : least;
      most = value > most ? value : most;
    }
    for (int lane = 0; lane < 16; ++lane) {
      if (least[lane] < low[lane % 4]) low[lane % 4] = least[lane];
      if (most[lane] > high[lane % 4]) high[lane % 4] = most[lane];
    }
  }
  for (; i < count; ++i) {
    for (int c = 0; c < 4; ++c) {
      const std::uint8_t value = pixels[std::ptrdiff_t{4} * i + c];
      if (value < low[c]) low[c] = value;
      if (value > high[c]) high[c] = value;
    }
  }
}

}  // namespace

const ImageKernels LOCKSTEP_IMAGE_KERNELS = {LOCKSTEP_IMAGE_KERNELS_NAME,
                                             resample_row,
                                             resample_column,
                                             to_float,
                                             gather,
                                             gather_bilinear,
                                             blend,
                                             to_grey,
                                             project,
                                             sample_bilinear,
                                             smooth,
                                             weighted_sum,
                                             to_bytes,
                                             extremes};

}  // namespace lockstep::data
