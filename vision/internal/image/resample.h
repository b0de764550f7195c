// Resizes as PIL's Image.resize does, bit for bit: a horizontal and a vertical pass of weighted sums, in the order of
// PIL 13. The filter widens with the reduction (antialiasing), weights have 22 bits after the point, and each pass
// rounds to 8 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "image/kernels.h"
#include "image/row_sink.h"
#include "image/view.h"
#include "lockstep/image/image.h"
#include "lockstep/image/modes.h"

namespace lockstep::data {

// Writes the rows of a picture of `size`, from top to bottom.
void resample(const View& picture, ImageSize size, Interpolation filter, RowSink& sink);
// The same of a part, in pixels that need not be whole. The part is wider and higher than `size`.
struct Extent {
  double begin = 0.0;
  double end = 0.0;
};
void resample(const View& picture, Extent columns, Extent rows, ImageSize size, Interpolation filter, RowSink& sink);
Image resized(const View& picture, ImageSize size, Interpolation filter);

// The weights of one direction.
struct Weights {
  std::vector<std::int32_t> first;    // the first input pixel of each output pixel
  std::vector<std::int32_t> count;    // the number of its input pixels
  std::vector<std::int32_t> weights;  // `taps` for each output pixel, padded with zeros
  int taps = 0;
};
void compute_weights(int input, Extent part, int output, Interpolation filter, Weights& weights);

// The weights of a horizontal pass in the order of the kernels.
class PairedWeights {
 public:
  // The plan is valid until the next call.
  const HorizontalResampling& arrange(const Weights& weights);

 private:
  std::vector<std::int32_t> first_;
  std::vector<std::int16_t> weights_;
  HorizontalResampling plan_;
};

}  // namespace lockstep::data
