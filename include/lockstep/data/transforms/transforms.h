// The transforms of torchvision.transforms (v1) that are listed in `Transform` below, and Lambda: the same names,
// parameters, defaults and distributions, on 8-bit pictures. The drawn numbers are not torchvision's.
//
//   Compose train({RandomResizedCrop{224}, RandomHorizontalFlip{}, ColorJitter{.brightness = 0.4, .contrast = 0.4},
//                  ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
//
// They are plain values; Compose (compose.h) checks and executes them. Random ones draw new parameters for each sample.
// docs/data.md says how close the pixels are to torchvision's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "lockstep/data/image/image.h"
#include "lockstep/data/transforms/counter_random.h"

namespace lockstep::data {

enum class Interpolation { kNearest, kBilinear, kBicubic, kBox, kHamming, kLanczos };

// The colour of pixels outside of the picture: a grey level, or R, G, B.
struct Fill {
  std::array<std::uint8_t, 3> color{0, 0, 0};
  Fill() = default;
  Fill(std::uint8_t grey) : color{grey, grey, grey} {}  // NOLINT(google-explicit-constructor)
  Fill(std::uint8_t r, std::uint8_t g, std::uint8_t b) : color{r, g, b} {}
  bool operator==(const Fill&) const = default;
};

// {224}: a square; {height, width} otherwise.
struct OutputSize {
  int height;
  int width;
  OutputSize(int side) : height(side), width(side) {}  // NOLINT(google-explicit-constructor)
  OutputSize(int h, int w) : height(h), width(w) {}
};

// {45}: from -45 to 45; {low, high} otherwise. Degrees, counter-clockwise.
struct AngleRange {
  double low;
  double high;
  AngleRange(double most) : low(-most), high(most) {}  // NOLINT(google-explicit-constructor)
  AngleRange(double from, double to) : low(from), high(to) {}
};

struct Interval01 {
  double low;
  double high;
};

struct Point {
  double x;
  double y;
};

// --- Sizes

struct Resize {
  // One number: the length of the shorter side; the other side keeps the proportion. Two numbers: height and width.
  std::variant<int, OutputSize> size;
  Interpolation interpolation = Interpolation::kBilinear;
  // The limit for the longer side, when `size` is one number.
  std::optional<int> max_size = {};
};

// Pictures that are smaller than `size` are padded with black.
struct CenterCrop {
  OutputSize size;
};

// A random part of the picture, resized to `size`. `scale`: its share of the picture's area; `ratio`: width to height.
struct RandomResizedCrop {
  OutputSize size;
  Interval01 scale = {0.08, 1.0};
  Interval01 ratio = {3.0 / 4.0, 4.0 / 3.0};
  Interpolation interpolation = Interpolation::kBilinear;
};

enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

// {4}: on all sides; {x, y}: left and right, top and bottom; {left, top, right, bottom}. Negative numbers crop.
struct Padding {
  int left;
  int top;
  int right;
  int bottom;
  Padding(int all) : left(all), top(all), right(all), bottom(all) {}  // NOLINT(google-explicit-constructor)
  Padding(int x, int y) : left(x), top(y), right(x), bottom(y) {}
  Padding(int l, int t, int r, int b) : left(l), top(t), right(r), bottom(b) {}
};

struct RandomCrop {
  OutputSize size;
  std::optional<Padding> padding = {};
  bool pad_if_needed = false;
  Fill fill = {};
  PaddingMode padding_mode = PaddingMode::kConstant;
};

struct Pad {
  Padding padding;
  Fill fill = {};
  PaddingMode padding_mode = PaddingMode::kConstant;
};

// --- Geometry

struct RandomHorizontalFlip {
  double p = 0.5;
};

struct RandomVerticalFlip {
  double p = 0.5;
};

struct RandomRotation {
  AngleRange degrees;
  Interpolation interpolation = Interpolation::kNearest;
  // Enlarges the result so that it holds the whole turned picture.
  bool expand = false;
  std::optional<Point> center = {};  // pixels from the upper left corner; default: the middle
  Fill fill = {};
};

struct RandomAffine {
  AngleRange degrees;
  std::optional<Point> translate = {};  // at most this share of width and height, in both directions
  std::optional<Interval01> scale = {};
  std::optional<AngleRange> shear = {};    // along x
  std::optional<AngleRange> shear_y = {};  // along y: the third and fourth number of torchvision's shear
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {};
  std::optional<Point> center = {};
};

// --- Colours

// {0.4}: a factor from 0.6 to 1.4 (for hue, -0.4 to 0.4); {low, high} otherwise.
struct Jitter {
  std::optional<double> amount = 0.0;
  double low = 0.0;
  double high = 0.0;
  Jitter() = default;
  Jitter(double most) : amount(most) {}  // NOLINT(google-explicit-constructor)
  Jitter(double from, double to) : amount(std::nullopt), low(from), high(to) {}
};

// Changes brightness, contrast, saturation and hue in random order.
struct ColorJitter {
  Jitter brightness = {};
  Jitter contrast = {};
  Jitter saturation = {};
  Jitter hue = {};
};

struct Grayscale {
  int num_output_channels = 1;  // or 3
};

struct RandomGrayscale {
  double p = 0.1;
};

struct GaussianBlur {
  OutputSize kernel_size;  // odd
  Interval01 sigma = {0.1, 2.0};
};

enum class AutoAugmentPolicy { kImageNet, kCifar10, kSvhn };

struct AutoAugment {
  AutoAugmentPolicy policy = AutoAugmentPolicy::kImageNet;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {};
};

struct RandAugment {
  int num_ops = 2;
  int magnitude = 9;
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {};
};

// Your own function: it may change the pixels, but not the size. Several threads call it at once. Grey pictures have
// the same value in R, G and B; after Grayscale{1} the sample takes R.
struct Lambda {
  std::function<void(Image& image, CounterRandom& random)> apply;
};

// --- Numbers

// Converts to float [channels, height, width] from 0 to 1. Without it samples are uint8.
struct ToTensor {};

// (value - mean) / std; after ToTensor. `mean` and `std` have one number for all channels, or one for each channel.
struct Normalize {
  std::vector<double> mean;
  std::vector<double> std;
};

// After ToTensor. Overwrites a rectangle with `value` (one number, or one for each channel) or with noise.
struct RandomErasing {
  double p = 0.5;
  Interval01 scale = {0.02, 0.33};
  Interval01 ratio = {0.3, 3.3};
  std::vector<double> value = {0.0};
  bool random = false;  // torchvision's value="random": normally distributed
};

using Transform =
    std::variant<Resize, CenterCrop, RandomResizedCrop, RandomCrop, Pad, RandomHorizontalFlip, RandomVerticalFlip,
                 RandomRotation, RandomAffine, ColorJitter, Grayscale, RandomGrayscale, GaussianBlur, AutoAugment,
                 RandAugment, Lambda, ToTensor, Normalize, RandomErasing>;

}  // namespace lockstep::data
