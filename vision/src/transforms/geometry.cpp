// Converts the parameters of torchvision's geometric functions to matrices and boxes, with the same rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numbers>

#include "transforms/step.h"

namespace lockstep::data {
namespace {

double radians(double degrees) {
  return degrees * (std::numbers::pi / 180.0);
}

// Rounds to 15 decimals, like Python's round() in PIL's rotate.
double rounded15(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.15f", value);
  return std::strtod(text, nullptr);
}

Point transformed(double x, double y, const AffineMatrix& m) {
  return {m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]};
}

// Widens the frame until it holds all corners.
void expand_frame(AffineMatrix& matrix, ImageSize& size) {
  const double w = size.width;
  const double h = size.height;
  double left = 0, right = 0, top = 0, bottom = 0;
  bool first = true;
  for (const Point corner : {Point{0, 0}, Point{w, 0}, Point{w, h}, Point{0, h}}) {
    const Point at = transformed(corner.x, corner.y, matrix);
    left = first ? at.x : std::min(left, at.x);
    right = first ? at.x : std::max(right, at.x);
    top = first ? at.y : std::min(top, at.y);
    bottom = first ? at.y : std::max(bottom, at.y);
    first = false;
  }
  const int width = static_cast<int>(std::ceil(right) - std::floor(left));
  const int height = static_cast<int>(std::ceil(bottom) - std::floor(top));
  const Point origin = transformed(-(width - w) / 2.0, -(height - h) / 2.0, matrix);
  matrix[2] = origin.x;
  matrix[5] = origin.y;
  size = {width, height};
}

}  // namespace

int rounded(double value) {
  constexpr double kMost = 1e9;
  return static_cast<int>(std::nearbyint(std::clamp(value, -kMost, kMost)));
}

Filter filter_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::kNearest: return Filter::kNearest;
    case Interpolation::kBilinear: return Filter::kBilinear;
    case Interpolation::kBicubic: return Filter::kBicubic;
    case Interpolation::kBox: return Filter::kBox;
    case Interpolation::kHamming: return Filter::kHamming;
    case Interpolation::kLanczos: return Filter::kLanczos;
  }
  return Filter::kBilinear;
}

WarpStep rotation(ImageSize picture, double degrees, Filter filter, bool expand, std::optional<Point> center,
                  Color fill) {
  degrees = std::fmod(degrees, 360.0);
  if (degrees < 0) degrees += 360.0;
  if (!center && (expand || picture.width == picture.height)) {
    const ImageSize turned{picture.height, picture.width};
    if (degrees == 90.0) return {{0, -1, static_cast<double>(picture.width), 1, 0, 0}, turned, filter, fill};
    if (degrees == 270.0) return {{0, 1, 0, -1, 0, static_cast<double>(picture.height)}, turned, filter, fill};
  }
  const Point middle = center.value_or(Point{picture.width / 2.0, picture.height / 2.0});
  const double angle = -radians(degrees);
  const double cosine = rounded15(std::cos(angle));
  const double sine = rounded15(std::sin(angle));
  AffineMatrix matrix{cosine, sine, 0.0, rounded15(-std::sin(angle)), cosine, 0.0};
  const Point origin = transformed(-middle.x, -middle.y, matrix);
  matrix[2] = origin.x + middle.x;
  matrix[5] = origin.y + middle.y;
  ImageSize size = picture;
  if (expand) expand_frame(matrix, size);
  return {matrix, size, filter, fill};
}

WarpStep affine(ImageSize picture, const AffineParameters& parameters, Filter filter, Color fill) {
  const double angle = radians(parameters.angle);
  const double shear_x = radians(parameters.shear.x);
  const double shear_y = radians(parameters.shear.y);
  const Point c = parameters.center.value_or(Point{picture.width * 0.5, picture.height * 0.5});
  const double turned_cos = std::cos(angle - shear_y);
  const double turned_sin = std::sin(angle - shear_y);
  // Rotation times shears. The determinant is 1, so the inverse needs no division.
  const double a = turned_cos / std::cos(shear_y);
  const double b = -turned_cos * std::tan(shear_x) / std::cos(shear_y) - std::sin(angle);
  const double d = turned_sin / std::cos(shear_y);
  const double e = -turned_sin * std::tan(shear_x) / std::cos(shear_y) + std::cos(angle);
  AffineMatrix matrix{e, -b, 0.0, -d, a, 0.0};
  for (double& value : matrix) value /= parameters.scale;
  const double x = -c.x - parameters.translate.x;
  const double y = -c.y - parameters.translate.y;
  matrix[2] += matrix[0] * x + matrix[1] * y;
  matrix[5] += matrix[3] * x + matrix[4] * y;
  matrix[2] += c.x;
  matrix[5] += c.y;
  return {matrix, picture, filter, fill};
}

ImageSize resized_size(ImageSize picture, const Resize& resize) {
  if (const auto* size = std::get_if<OutputSize>(&resize.size)) return {size->width, size->height};
  const bool upright = picture.width <= picture.height;
  const double short_side = upright ? picture.width : picture.height;
  const double long_side = upright ? picture.height : picture.width;
  int new_short = std::get<int>(resize.size);
  const double proportional = new_short * long_side / short_side;  // may not fit an int for a picture of one row
  int new_long = static_cast<int>(std::min<double>(proportional, std::numeric_limits<int>::max()));
  if (resize.max_size && new_long > *resize.max_size) {
    new_short = std::max(static_cast<int>(static_cast<double>(*resize.max_size) * new_short / new_long), 1);
    new_long = *resize.max_size;
  }
  return upright ? ImageSize{new_short, new_long} : ImageSize{new_long, new_short};
}

Box random_resized_crop_box(ImageSize picture, Interval01 scale, Interval01 ratio, CounterRandom& random) {
  constexpr int kAttempts = 10;
  const double area = static_cast<double>(picture.width) * picture.height;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double target = area * random.uniform(scale.low, scale.high);
    const double aspect = std::exp(random.uniform(std::log(ratio.low), std::log(ratio.high)));
    const int width = rounded(std::sqrt(target * aspect));
    const int height = rounded(std::sqrt(target / aspect));
    if (width < 1 || width > picture.width || height < 1 || height > picture.height) continue;
    const auto top = static_cast<int>(random.below(picture.height - height + 1));
    const auto left = static_cast<int>(random.below(picture.width - width + 1));
    return {left, top, width, height};
  }
  const double aspect = static_cast<double>(picture.width) / picture.height;
  Box box{0, 0, picture.width, picture.height};
  if (aspect < ratio.low) box.height = std::clamp(rounded(picture.width / ratio.low), 1, picture.height);
  if (aspect > ratio.high) box.width = std::clamp(rounded(picture.height * ratio.high), 1, picture.width);
  box.left = (picture.width - box.width) / 2;
  box.top = (picture.height - box.height) / 2;
  return box;
}

}  // namespace lockstep::data
