// Gaussian blur in float: weights and mirrored edges as in torchvision, one direction after the other.
#pragma once

#include "image/row_sink.h"
#include "image/view.h"

namespace lockstep::data {

// Width and height are odd. They may be larger than the picture, unlike in torchvision: the picture is mirrored again
// and again.
struct GaussianKernel {
  int width = 3;
  int height = 3;
  double sigma = 1.0;    // along x, and along y unless sigma_y says otherwise
  double sigma_y = 0.0;  // 0: as sigma
};

// Rounds to nearest even.
void gaussian_blur(const View& picture, const GaussianKernel& kernel, RowSink& sink);

// One number a pixel, rows without gaps, in place.
void gaussian_blur(float* plane, ImageSize size, const GaussianKernel& kernel);

// The position in 0..size-1 to which i is mirrored.
int mirrored(int i, int size, bool repeat_edge);

}  // namespace lockstep::data
