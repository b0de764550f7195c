// Pictures whose pixels move: affine transforms as in PIL's Image.transform(size, AFFINE, ...): the matrix maps the
// centre of each output pixel to a position in the input; pixels from outside of the input are `fill`.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "image/resample.h"
#include "image/row_sink.h"
#include "image/view.h"

namespace lockstep::data {

using Color = std::array<std::uint8_t, 3>;

// Input x = m[0] * x + m[1] * y + m[2], input y = m[3] * x + m[4] * y + m[5], where x and y are pixel centres (n +
// 0.5).
using AffineMatrix = std::array<double, 6>;

// kNearest, kBilinear or kBicubic, with the same bits as PIL.
void transform_affine(const View& picture, ImageSize size, const AffineMatrix& matrix, Interpolation filter, Color fill,
                      RowSink& sink);

// Several transforms in one resampling, without intermediate pictures: an output pixel is followed back through all
// stages, and is `fill` if it leaves the frame of one. kNearest or kBilinear. The stages are in reverse order: the
// first in the list belongs to the last transform. The frame of a stage is the size that it reads from.
struct AffineStage {
  AffineMatrix matrix;
  ImageSize frame;
};
void transform_fused(const View& picture, ImageSize size, std::span<const AffineStage> stages, Interpolation filter,
                     Color fill, RowSink& sink);

}  // namespace lockstep::data
