#include "image/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/arithmetic.h"
#include "image/color.h"

namespace lockstep::data {
namespace {

constexpr int kWeightBits = 22;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double cubic(double x) {
  constexpr double kSlope = -0.5;
  if (x < 1.0) return ((kSlope + 2.0) * x - (kSlope + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kSlope;
  return 0.0;
}

double hamming(double x) {
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x *= std::numbers::pi;
  return std::sin(x) / x * (0.54F + 0.46F * std::cos(x));  // single-precision constants, as in PIL
}

double filter_at(Interpolation filter, double x) {
  const double distance = std::abs(x);
  switch (filter) {
    case Interpolation::kBox: return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case Interpolation::kBilinear: return distance < 1.0 ? 1.0 - distance : 0.0;
    case Interpolation::kHamming: return hamming(distance);
    case Interpolation::kBicubic: return cubic(distance);
    case Interpolation::kLanczos: return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    case Interpolation::kNearest: break;
  }
  return 0.0;
}

double support_of(Interpolation filter) {
  switch (filter) {
    case Interpolation::kBox: return 0.5;
    case Interpolation::kBicubic: return 2.0;
    case Interpolation::kLanczos: return 3.0;
    default: return 1.0;
  }
}

// Memory that a thread keeps from picture to picture.
struct Scratch {
  Weights horizontal;
  Weights vertical;
  PairedWeights paired;
  Image between;  // the result of the first of two passes
  std::vector<const std::uint8_t*> rows;
};

void resample_nearest(const View& picture, ImageSize size, RowSink& sink) {
  const double step_x = static_cast<double>(picture.width) / size.width;
  const double step_y = static_cast<double>(picture.height) / size.height;
  double at_y = step_y * 0.5;
  for (int y = 0; y < size.height; ++y, at_y += step_y) {
    const std::uint8_t* from = picture.row(std::min(static_cast<int>(at_y), picture.height - 1));
    std::uint8_t* to = sink.begin(y);
    double at_x = step_x * 0.5;
    for (int x = 0; x < size.width; ++x, at_x += step_x) {
      std::memcpy(to + std::ptrdiff_t{4} * x,
                  from + std::ptrdiff_t{4} * std::min(static_cast<int>(at_x), picture.width - 1), 4);
    }
    sink.end(y);
  }
}

// PIL 13 chooses the order of the passes by this rule. The order changes the last bit.
bool vertical_first(const View& picture, ImageSize size) {
  const std::int64_t rows_less = picture.height - size.height;
  const std::int64_t columns_less = picture.width - size.width;
  return rows_less > 0 && rows_less > 2 * columns_less;
}

void vertical_pass(const View& picture, Extent part, int height, Interpolation filter, Scratch& scratch,
                   RowSink& sink) {
  if (height == picture.height) return copy_rows(picture, sink);
  const Weights& weights = scratch.vertical;
  compute_weights(picture.height, part, height, filter, scratch.vertical);
  scratch.rows.resize(static_cast<std::size_t>(weights.taps));
  const ImageKernels& kernels = image_kernels();
  for (int y = 0; y < height; ++y) {
    const auto at = static_cast<std::size_t>(y);
    for (int t = 0; t < weights.count[at]; ++t) {
      scratch.rows[static_cast<std::size_t>(t)] = picture.row(weights.first[at] + t);
    }
    kernels.resample_column(scratch.rows.data(), weights.weights.data() + at * static_cast<std::size_t>(weights.taps),
                            weights.count[at], picture.width * Image::kBytesPerPixel, sink.begin(y));
    sink.end(y);
  }
}

void horizontal_pass(const View& picture, Extent part, int width, Interpolation filter, Scratch& scratch,
                     RowSink& sink) {
  if (width == picture.width) return copy_rows(picture, sink);
  compute_weights(picture.width, part, width, filter, scratch.horizontal);
  const HorizontalResampling& plan = scratch.paired.arrange(scratch.horizontal);
  for (int y = 0; y < picture.height; ++y) {
    image_kernels().resample_row(plan, picture.row(y), sink.begin(y));
    sink.end(y);
  }
}

// Lets the first of two passes write its rows in place.
class PlainSink : public RowSink {
 public:
  PlainSink(Image& image, ImageSize size) : image_(image) {
    // Passes write whole vectors: the excess goes into the next row, which is written later, or into the slack.
    image.reset(size.width, size.height);
  }
  std::uint8_t* begin(int y) override { return image_.row(y); }
  void end(int /*y*/) override {}
  View view() const { return image_; }

 private:
  Image& image_;
};

}  // namespace

void compute_weights(int input, Extent part, int output, Interpolation filter, Weights& weights) {
  const double scale = (part.end - part.begin) / output;
  const double widening = std::max(scale, 1.0);
  const double support = support_of(filter) * widening;
  const double narrowing = 1.0 / widening;
  weights.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  const auto outputs = static_cast<std::size_t>(output);
  const auto taps = static_cast<std::size_t>(weights.taps);
  weights.first.resize(outputs);
  weights.count.resize(outputs);
  weights.weights.assign(outputs * taps, 0);
  thread_local std::vector<double> values;
  values.resize(taps);
  for (std::size_t x = 0; x < outputs; ++x) {
    const double center = part.begin + (static_cast<double>(x) + 0.5) * scale;
    // Rounded as PIL does. NOLINTNEXTLINE(bugprone-incorrect-roundings)
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    // NOLINTNEXTLINE(bugprone-incorrect-roundings)
    const int count = std::min(static_cast<int>(center + support + 0.5), input) - first;
    double sum = 0.0;
    for (int t = 0; t < count; ++t) {
      values[static_cast<std::size_t>(t)] = filter_at(filter, (t + first - center + 0.5) * narrowing);
      sum += values[static_cast<std::size_t>(t)];
    }
    for (int t = 0; t < count; ++t) {
      double value = values[static_cast<std::size_t>(t)];
      if (sum != 0.0) value /= sum;
      value *= 1 << kWeightBits;
      weights.weights[x * taps + static_cast<std::size_t>(t)] =
          static_cast<std::int32_t>(value < 0 ? value - 0.5 : value + 0.5);
    }
    weights.first[x] = first;
    weights.count[x] = count;
  }
}

const HorizontalResampling& PairedWeights::arrange(const Weights& weights) {
  constexpr std::size_t kTogether = HorizontalResampling::kTogether;
  constexpr std::size_t kNumbers = HorizontalResampling::kNumbers;
  constexpr std::size_t kPart = kTogether * kNumbers;
  const std::size_t width = weights.first.size();
  const std::size_t padded = round_up(width, kTogether);
  const auto most = static_cast<std::size_t>(*std::max_element(weights.count.begin(), weights.count.end()));
  const std::size_t pairs = std::max<std::size_t>((most + 1) / 2, 1);
  first_.assign(padded, weights.first.back());
  std::copy(weights.first.begin(), weights.first.end(), first_.begin());
  weights_.assign(padded * pairs * 2 * kNumbers, 0);
  for (std::size_t x = 0; x < width; ++x) {
    const std::int32_t* from = weights.weights.data() + x * static_cast<std::size_t>(weights.taps);
    std::int16_t* group = weights_.data() + x / kTogether * pairs * 2 * kPart + x % kTogether * kNumbers;
    const auto count = static_cast<std::size_t>(weights.count[x]);
    for (std::size_t tap = 0; tap < count; ++tap) {
      std::int16_t* to = group + tap / 2 * 2 * kPart + tap % 2;
      const std::int32_t high = from[tap] >> HorizontalResampling::kLowBits;
      const std::int32_t low = from[tap] - high * (1 << HorizontalResampling::kLowBits);
      for (std::size_t i = 0; i < kNumbers; i += 2) {
        to[i] = static_cast<std::int16_t>(high);
        to[kPart + i] = static_cast<std::int16_t>(low);
      }
    }
  }
  plan_ = {static_cast<int>(width), first_.data(), weights_.data(), static_cast<int>(pairs)};
  return plan_;
}

void resample(const View& picture, ImageSize size, Interpolation filter, RowSink& sink) {
  if (size.width == picture.width && size.height == picture.height) return copy_rows(picture, sink);
  if (filter == Interpolation::kNearest) return resample_nearest(picture, size, sink);
  const Extent columns{0.0, static_cast<double>(picture.width)};
  const Extent rows{0.0, static_cast<double>(picture.height)};
  resample(picture, columns, rows, size, filter, sink);
}

void resample(const View& picture, Extent columns, Extent rows, ImageSize size, Interpolation filter, RowSink& sink) {
  thread_local Scratch scratch;
  if (size.width == picture.width) return vertical_pass(picture, rows, size.height, filter, scratch, sink);
  if (size.height == picture.height) return horizontal_pass(picture, columns, size.width, filter, scratch, sink);
  if (vertical_first(picture, size)) {
    PlainSink between(scratch.between, {picture.width, size.height});
    vertical_pass(picture, rows, size.height, filter, scratch, between);
    return horizontal_pass(between.view(), columns, size.width, filter, scratch, sink);
  }
  PlainSink between(scratch.between, {size.width, picture.height});
  horizontal_pass(picture, columns, size.width, filter, scratch, between);
  vertical_pass(between.view(), rows, size.height, filter, scratch, sink);
}

Image resized(const View& picture, ImageSize size, Interpolation filter) {
  Image image;
  ImageSink sink(image, size);
  resample(picture, size, filter, sink);
  return image;
}

}  // namespace lockstep::data
