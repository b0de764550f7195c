// The transforms of torchvision.transforms (v1, and some of v2) that are listed in `Transform` below, and Lambda: the
// same names, parameters, defaults and distributions, on 8-bit pictures. The drawn numbers are not torchvision's.
//
//   Compose train({RandomResizedCrop{224}, RandomHorizontalFlip{}, ColorJitter{.brightness = 0.4, .contrast = 0.4},
//                  ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
//
// Transforms are plain values; Compose (compose.h) checks and executes them. Random transforms draw new parameters for
// each sample. docs/data.md says how close the pixels are to torchvision's.
#pragma once

#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "lockstep/image/image.h"
#include "lockstep/transforms/counter_random.h"
#include "lockstep/transforms/parameters.h"

namespace lockstep::data {

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

// A random part of the picture, resized to `size`. `scale`: the part's share of the picture's area; `ratio`: the part's
// width to its height.
struct RandomResizedCrop {
  OutputSize size;
  Interval01 scale = {0.08, 1.0};
  Interval01 ratio = {3.0 / 4.0, 4.0 / 3.0};
  Interpolation interpolation = Interpolation::kBilinear;
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
  // Enlarges the result until the whole turned picture fits.
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
  KernelSize kernel_size;  // odd
  Interval01 sigma = {0.1, 2.0};
};

struct RandomInvert {
  double p = 0.5;
};

// Keeps the upper `bits` of each value, 1 to 8.
struct RandomPosterize {
  int bits;
  double p = 0.5;
};

// Inverts values from `threshold` on.
struct RandomSolarize {
  double threshold;
  double p = 0.5;
};

// 0: smoothed, 1: unchanged, above 1: sharper.
struct RandomAdjustSharpness {
  double sharpness_factor;
  double p = 0.5;
};

// Stretches the values of each channel to 0..255.
struct RandomAutocontrast {
  double p = 0.5;
};

// Makes all values of each channel equally frequent.
struct RandomEqualize {
  double p = 0.5;
};

// `num_ops` random operations on colours and geometry, with the strength `magnitude` of `num_magnitude_bins`.
struct RandAugment {
  int num_ops = 2;
  int magnitude = 9;  // 0 to num_magnitude_bins - 1
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {};
};

// One operation of RandAugment, with a wider range of strengths; the strength is random.
struct TrivialAugmentWide {
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {};
};

// Your own function. The function may change the pixels, but not the size. It may run another Compose, for a second
// picture. Several threads call it at once. Grey pictures have the same value in R, G and B; after Grayscale{1} the
// sample takes R.
struct Lambda {
  std::function<void(Image& image, CounterRandom& random)> apply;
};

// --- Numbers

// Converts to float [channels, height, width] from 0 to 1. Without a conversion samples are uint8.
struct ToTensor {};

// Does what ToTensor does: torchvision's convert_image_dtype to float.
struct ConvertImageDtype {};

// Does nothing: samples are uint8 tensors anyway, unless ToTensor or ConvertImageDtype follows.
struct PILToTensor {};

// (value - mean) / std; after ToTensor. `mean` and `std` have one number for all channels, or one for each channel. No
// number of `std` is 0.
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

// --- Lists. The transforms of a list may be lists too. A list holds neither ToTensor, ConvertImageDtype, PILToTensor,
// Normalize nor Grayscale{1}: type, shape and scale are the same for all samples.

struct Transform;

// All transforms of the list with probability p, otherwise none. The list may be empty.
struct RandomApply {
  std::vector<Transform> transforms;
  double p = 0.5;
};

// One transform of the list, which has at least one.
struct RandomChoice {
  std::vector<Transform> transforms;
  std::vector<double> p = {};  // a weight for each transform; empty: equal weights. The sum need not be 1
};

// All transforms of the list, in random order. The list may be empty.
struct RandomOrder {
  std::vector<Transform> transforms;
};

// Any transform of this header. A struct, not an alias: lists of transforms are transforms.
struct Transform
    : std::variant<Resize, CenterCrop, RandomResizedCrop, RandomCrop, Pad, RandomHorizontalFlip, RandomVerticalFlip,
                   RandomRotation, RandomAffine, ColorJitter, Grayscale, RandomGrayscale, GaussianBlur, RandomInvert,
                   RandomPosterize, RandomSolarize, RandomAdjustSharpness, RandomAutocontrast, RandomEqualize,
                   RandAugment, TrivialAugmentWide, Lambda, ToTensor, ConvertImageDtype, PILToTensor, Normalize,
                   RandomErasing, RandomApply, RandomChoice, RandomOrder> {
  using variant::variant;
};

// The transforms of a list, or nullptr for other transforms.
const std::vector<Transform>* listed_transforms(const Transform& transform);

}  // namespace lockstep::data
