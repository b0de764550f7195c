// Resizing as PIL's Image.resize does it, bit for bit: a horizontal and a vertical pass (in the order that PIL 13
// takes) of weighted sums, with a filter that widens with the reduction (antialiasing), weights in fixed point with 22
// bits, rounded to 8 bits after each pass.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image/row_sink.h"
#include "data/image/view.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

enum class Filter { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

// Writes `size` of rows, each as one begin() and end(), from top to bottom.
void resample(const View& picture, ImageSize size, Filter filter, RowSink& sink);
Image resized(const View& picture, ImageSize size, Filter filter);

// The weights of one direction.
struct Weights {
  std::vector<std::int32_t> first;    // first input pixel of each output pixel
  std::vector<std::int32_t> count;    // and how many
  std::vector<std::int32_t> weights;  // `taps` for each, zeros behind the last
  int taps = 0;
};
void compute_weights(int input, int output, Filter filter, Weights& weights);

}  // namespace lockstep::data
