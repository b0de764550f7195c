// The inner loops over pixels: the same code (kernels.inl) compiled once for each instruction set, one of which is
// chosen at run time. Results are bitwise the same whichever runs.
//
// Only declarations and plain data here, for the reason that reduce/reduce_kernels.h gives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::data {

// One output pixel of a horizontal resampling: the sum over taps of pixel * weight. `weights` holds, for each tap, the
// weight four times (once a channel), padded with zeros to a multiple of kTapStep taps.
struct HorizontalResampling {
  static constexpr int kTapStep = 4;
  int width = 0;                        // output pixels
  const std::int32_t* first = nullptr;  // of each output pixel: its first input pixel
  const std::int32_t* weights = nullptr;
  int taps = 0;  // padded
};

// value -> (value / 255 - mean) / deviation, exactly as three operations in float; or value * scale + offset.
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

struct ImageKernels {
  const char* name;
  // Reads up to 12 bytes past the last pixel that has a weight.
  void (*resample_row)(const HorizontalResampling& plan, const std::uint8_t* in, std::uint8_t* out);
  // `count` bytes (a multiple of 4): the sum over taps of rows[t][i] * weights[t]; may write up to a multiple of 64
  // bytes.
  void (*resample_column)(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, int count,
                          std::uint8_t* out);
  // Pixels to one plane a channel. `reversed`: the last pixel comes first.
  void (*to_float)(const ToFloat& how, const std::uint8_t* pixels, int count, int channels, bool reversed,
                   float* const planes[3]);
  // Nearest pixels along a line; all of them have to lie inside the source.
  void (*gather)(const GatherRow& row, std::uint8_t* out);
  // The same between four pixels, with weights of 8 bits; x and y are those of the upper left one, all four inside.
  void (*gather_bilinear)(const GatherRow& row, std::uint8_t* out);
  // first + factor * (second - first), cut off at 0 and 255 when `clip`; `out` may be either.
  void (*blend)(const std::uint8_t* first, const std::uint8_t* second, float factor, bool clip, std::int64_t bytes,
                std::uint8_t* out);
  // Luma of each pixel in R, G and B.
  void (*to_grey)(const std::uint8_t* pixels, int count, std::uint8_t* out);
};

extern const ImageKernels kPortableImageKernels;
extern const ImageKernels kAvx2ImageKernels;
extern const ImageKernels kAvx512ImageKernels;

// The widest that this machine can run, or what LOCKSTEP_ISA (portable, avx2, avx512) asks for.
const ImageKernels& image_kernels();
// All that this machine can run; answers how many.
int supported_image_kernels(const ImageKernels* list[3]);

}  // namespace lockstep::data
