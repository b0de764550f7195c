// Operations on colours and neighbouring pixels. ImageEnhance, ImageOps and conversions have PIL's arithmetic. Each
// operation writes its rows from top to bottom.
#pragma once

#include <array>

#include "image/row_sink.h"
#include "image/view.h"
#include "lockstep/image/modes.h"

namespace lockstep::data {

Lookup brightness_lookup(float factor);
Lookup invert_lookup();
// Keeps the upper `bits` of the 8.
Lookup posterize_lookup(int bits);
Lookup solarize_lookup(double threshold);
// These depend on the picture.
Lookup contrast_lookup(const View& picture, float factor);
Lookups autocontrast_lookups(const View& picture);
Lookups equalize_lookups(const View& picture);

void apply_lookups(const View& picture, const Lookups& lookups, RowSink& sink);
inline void apply_lookup(const View& picture, const Lookup& lookup, RowSink& sink) {
  apply_lookups(picture, {lookup, lookup, lookup}, sink);
}
// factor 0: grey, 1: unchanged, above 1: stronger.
void adjust_saturation(const View& picture, float factor, RowSink& sink);
// factor: turns of the colour circle, from -0.5 to 0.5.
void adjust_hue(const View& picture, double factor, RowSink& sink);
// factor 0: smoothed, 1: unchanged, above 1: sharper.
void adjust_sharpness(const View& picture, float factor, RowSink& sink);
void to_grey(const View& picture, RowSink& sink);

struct PadAmounts {
  int left = 0;
  int top = 0;
  int right = 0;
  int bottom = 0;
  bool operator==(const PadAmounts&) const = default;
};
// Negative amounts, which only kConstant takes, crop.
void pad(const View& picture, const PadAmounts& padding, std::array<std::uint8_t, 3> fill, PaddingMode mode,
         RowSink& sink);

void copy_rows(const View& picture, RowSink& sink);

// --- Gaussian blur in float: weights and mirrored edges as in torchvision, one direction after the other.

// Width and height are odd. They may be larger than the picture, unlike in torchvision: the picture is mirrored again
// and again.
struct GaussianKernel {
  int width = 3;
  int height = 3;
  double sigma = 1.0;
};

// Rounds to nearest even.
void gaussian_blur(const View& picture, const GaussianKernel& kernel, RowSink& sink);

// One number a pixel, rows without gaps, in place.
void gaussian_blur(float* plane, ImageSize size, const GaussianKernel& kernel);

// The position in 0..size-1 to which i is mirrored.
int mirrored(int i, int size, bool repeat_edge);

}  // namespace lockstep::data
