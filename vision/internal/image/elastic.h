// Moves each pixel by a displacement of its own, as torchvision's elastic_transform does with grid_sample.
#pragma once

#include <vector>

#include "image/affine.h"

namespace lockstep::data {

// A number for each pixel: how far away the input's pixel is, in halves of the picture's width (x) or height (y).
struct Displacement {
  std::vector<float> x;
  std::vector<float> y;
};

// kNearest or kBilinear. Pixels outside of the picture count as `fill`.
void transform_elastic(const View& picture, const Displacement& displacement, Interpolation filter, Color fill,
                       RowSink& sink);

}  // namespace lockstep::data
