// Affine transforms as PIL's Image.transform(size, AFFINE, ...) does them: for each output pixel, where its centre
// comes from in the input; `fill` where that is outside.
#pragma once

#include <array>
#include <span>

#include "data/image/resample.h"
#include "data/image/row_sink.h"
#include "data/image/view.h"

namespace lockstep::data {

using Color = std::array<std::uint8_t, 3>;

// Input x = m[0] * x + m[1] * y + m[2], input y = m[3] * x + m[4] * y + m[5], of pixel centres (x + 0.5).
using AffineMatrix = std::array<double, 6>;

// kNearest, kBilinear or kBicubic; the bits of PIL.
void transform_affine(const View& picture, ImageSize size, const AffineMatrix& matrix, Filter filter, Color fill,
                      RowSink& sink);

// One after another without pictures in between, in one resampling: an output pixel is followed back through all of
// them, and is `fill` where it leaves the frame of any. kNearest or kBilinear. The last matrix comes first, with the
// frame that it reads from; a frame of the last of the list is the picture's.
struct AffineStage {
  AffineMatrix matrix;
  ImageSize frame;
};
void transform_fused(const View& picture, ImageSize size, std::span<const AffineStage> stages, Filter filter,
                     Color fill, RowSink& sink);

}  // namespace lockstep::data
