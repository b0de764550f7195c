// Pictures whose pixels move: affine transforms as in PIL's Image.transform(size, AFFINE, ...), and projective ones
// (PERSPECTIVE): the matrix maps the centre of each output pixel to a position in the input; pixels from outside of the
// input are `fill`. Elastic ones move each pixel by a displacement of its own.
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

// Input x = (m[0] x + m[1] y + m[2]) / (m[6] x + m[7] y + 1), input y the same with m[3] to m[5].
using Projection = std::array<double, 8>;

// kNearest, kBilinear or kBicubic, with the same bits as PIL. The size stays.
void transform_projective(const View& picture, const Projection& matrix, Interpolation filter, Color fill,
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

// A number for each pixel: how far away the input's pixel is, in halves of the picture's width (x) or height (y).
struct Displacement {
  std::vector<float> x;
  std::vector<float> y;
};

// As torchvision's elastic_transform does with grid_sample. kNearest or kBilinear. Pixels outside of the picture count
// as `fill`.
void transform_elastic(const View& picture, const Displacement& displacement, Interpolation filter, Color fill,
                       RowSink& sink);

}  // namespace lockstep::data
