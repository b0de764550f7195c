// The inner loops over pixels. The same code (kernels.inl) is compiled once for each instruction set, and one version
// is chosen at run time. All give the same bits.
//
// This header has only declarations and plain data; reduce/reduce_kernels.h says why.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::data {

// A horizontal resampling. An output pixel is the sum over taps of pixel * weight. Two neighbouring taps are multiplied
// at once, as numbers of 16 bits: a weight is high * 2^kLowBits + low.
//
// kTogether output pixels are made together. For each of these groups and each pair of taps, `weights` has the high
// parts of all its pixels and then the low parts: those of a pixel are first and second tap, four times (for the four
// bytes of a pixel). `first` and `weights` are padded to whole groups and pairs.
struct HorizontalResampling {
  static constexpr int kTogether = 4;
  static constexpr int kLowBits = 11;
  static constexpr int kNumbers = 8;    // of a pair and an output pixel, in each of both parts
  int width = 0;                        // output pixels
  const std::int32_t* first = nullptr;  // the first input pixel of each output pixel
  const std::int16_t* weights = nullptr;
  int pairs = 0;  // of taps
};

// value -> (value / 255 - mean) / deviation, as three float operations if `exact`; otherwise value * scale + offset.
struct ToFloat {
  bool exact = true;
  float mean[3] = {0, 0, 0};
  float deviation[3] = {1, 1, 1};
  float scale[3] = {1, 1, 1};
  float offset[3] = {0, 0, 0};
};

struct GatherRow {
  const std::uint8_t* pixels;  // of the source
  std::int64_t stride;         // bytes
  std::int32_t x, y;           // 16.16 fixed point, of the first output pixel
  std::int32_t dx, dy;         // from an output pixel to the next
  int count;
};

// Positions in a picture, in pixels from its upper left corner: pixel n of a row reaches from n to n + 1.
struct SampledRow {
  const std::uint8_t* pixels;  // of the source
  std::int64_t stride;         // bytes
  int width, height;           // of the source
  const double* x;
  const double* y;
  int count;
  std::uint8_t fill[4];  // for positions outside
};

struct ImageKernels {
  const char* name;
  // Reads up to 12 bytes after the last of the taps, and writes up to 3 pixels more.
  void (*resample_row)(const HorizontalResampling& plan, const std::uint8_t* in, std::uint8_t* out);
  // Writes `count` bytes (a multiple of 4), rounded up to at most a multiple of 64: sums over taps of
  // rows[t][i] * weights[t].
  void (*resample_column)(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, int count,
                          std::uint8_t* out);
  // Splits pixels into one plane for each channel. `reversed`: the last pixel comes first.
  void (*to_float)(const ToFloat& how, const std::uint8_t* pixels, int count, int channels, bool reversed,
                   float* const planes[3]);
  // The nearest pixels along a line; all must be inside of the source.
  void (*gather)(const GatherRow& row, std::uint8_t* out);
  // Interpolates between four pixels with 8-bit weights. x and y are those of the upper left one; all are inside.
  void (*gather_bilinear)(const GatherRow& row, std::uint8_t* out);
  // first + factor * (second - first), limited to 0..255 if `clip`; `out` may be one of the inputs.
  void (*blend)(const std::uint8_t* first, const std::uint8_t* second, float factor, bool clip, std::int64_t bytes,
                std::uint8_t* out);
  // Writes the luma of each pixel to R, G and B.
  void (*to_grey)(const std::uint8_t* pixels, int count, std::uint8_t* out);
  // The positions of the pixels of row `row`, as in PIL's affine_transform: m[0] x + m[1] y + m[2], and the
  // same with m[3] to m[5].
  void (*project)(const double m[6], int row, int count, double* x, double* y);
  // Interpolates in double as PIL does: positions outside are `fill`, neighbours outside repeat the edge.
  void (*sample_bilinear)(const SampledRow& row, std::uint8_t* out);
  // PIL's filter SMOOTH for `count` bytes; those beside and in the rows above and below must exist. Writes up to 63
  // bytes more.
  void (*smooth)(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below, int count,
                 std::uint8_t* out);
  // Sums over taps of rows[t][i] * weights[t], in this order.
  void (*weighted_sum)(const float* const* rows, const float* weights, int taps, int count, float* out);
  // To 0..255, rounded to nearest even. Writes up to 63 bytes more, and reads as many numbers.
  void (*to_bytes)(const float* values, int count, std::uint8_t* out);
  // Lowers low[c] and raises high[c] to the values of each of the four bytes of the pixels.
  void (*extremes)(const std::uint8_t* pixels, int count, std::uint8_t low[4], std::uint8_t high[4]);
};

extern const ImageKernels kPortableImageKernels;
extern const ImageKernels kAvx2ImageKernels;
extern const ImageKernels kAvx512ImageKernels;

// The kernels of LOCKSTEP_ISA (portable, avx2, avx512) if this machine has them, otherwise the widest that it has.
const ImageKernels& image_kernels();
// Lists all kernels that this machine can run, and returns their number.
int supported_image_kernels(const ImageKernels* list[3]);

}  // namespace lockstep::data
