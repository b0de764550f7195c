// Flips, rotations and affine transforms. Matrices have torchvision's rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>

#include "transforms/kind.h"

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

WarpStep rotation(ImageSize picture, double degrees, Interpolation filter, bool expand, std::optional<Point> center,
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

WarpStep affine(ImageSize picture, const AffineParameters& parameters, Interpolation filter, Color fill) {
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

namespace {

void is_translation(const Point& most, const Require& require) {
  for (const double part : {most.x, most.y}) require(part >= 0 && part <= 1, "translate from 0 to 1", part);
}

// One number or two: along x. Four: along both axes.
void read_shear(const TextValue& value, RandomAffine& t) {
  std::vector<double> shear;
  text::read(value, shear);
  if (shear.size() == 3 || shear.size() > 4)
    text::refuse(fmt::format("expected 1, 2 or 4 numbers, found {}", shear.size()));
  if (shear.empty()) return;
  t.shear = shear.size() == 1 ? AngleRange(shear[0]) : AngleRange(shear[0], shear[1]);
  if (shear.size() == 4) t.shear_y = AngleRange(shear[2], shear[3]);
}

void check_shear(const RandomAffine& t, const Require& require) {
  const auto check = if_set(range(-kInfinity, kInfinity));
  check(t.shear, Require{require.place, require.name, "shear"});
  check(t.shear_y, Require{require.place, require.name, "shear_y"});
}

void draw_affine(const RandomAffine& t, Drawing& d) {
  CounterRandom& random = d.random;
  AffineParameters parameters;
  parameters.center = t.center;
  parameters.angle = random.uniform(t.degrees.low, t.degrees.high);
  if (t.translate) {
    const double x = t.translate->x * d.plan.size.width;
    const double y = t.translate->y * d.plan.size.height;
    parameters.translate.x = rounded(random.uniform(-x, x));
    parameters.translate.y = rounded(random.uniform(-y, y));
  }
  if (t.scale) parameters.scale = random.uniform(t.scale->low, t.scale->high);
  if (t.shear) parameters.shear.x = random.uniform(t.shear->low, t.shear->high);
  if (t.shear_y) parameters.shear.y = random.uniform(t.shear_y->low, t.shear_y->high);
  d.add(affine(d.plan.size, parameters, t.interpolation, t.fill.color));
}

}  // namespace

std::vector<Kind> geometry_kinds() {
  return {
      About<RandomHorizontalFlip>{
          .name = "RandomHorizontalFlip",
          .parameters = {probability<RandomHorizontalFlip>()},
          .draw =
              [](const auto& t, Drawing& d) {
                if (d.random.chance(t.p)) d.add(MirrorStep{{.horizontal = true}});
              },
          .stands = [](const auto&, const Place& place) { place.moves_pixels(); },
      },
      About<RandomVerticalFlip>{
          .name = "RandomVerticalFlip",
          .parameters = {probability<RandomVerticalFlip>()},
          .draw =
              [](const auto& t, Drawing& d) {
                if (d.random.chance(t.p)) d.add(MirrorStep{{.vertical = true}});
              },
          .stands = [](const auto&, const Place& place) { place.moves_pixels(); },
      },
      About<RandomRotation>{
          .name = "RandomRotation",
          .defaults = {0.0},
          .parameters = {required("degrees", &RandomRotation::degrees, range(-kInfinity, kInfinity)),
                         warp_filter<RandomRotation>(), optional("expand", &RandomRotation::expand),
                         optional("center", &RandomRotation::center, is_center), fill<RandomRotation>()},
          .draw =
              [](const auto& t, Drawing& d) {
                const double angle = d.random.uniform(t.degrees.low, t.degrees.high);
                if (std::fmod(angle, 360.0) == 0.0) return;
                d.add(rotation(d.plan.size, angle, t.interpolation, t.expand, t.center, t.fill.color));
              },
      },
      About<RandomAffine>{
          .name = "RandomAffine",
          .defaults = {0.0},
          .parameters = {required("degrees", &RandomAffine::degrees, range(-kInfinity, kInfinity)),
                         optional("translate", &RandomAffine::translate, if_set(is_translation)),
                         optional("scale", &RandomAffine::scale, if_set(range(kAboveZero, kInfinity))),
                         {{"shear", false}, read_shear, check_shear},
                         warp_filter<RandomAffine>(),
                         fill<RandomAffine>(),
                         optional("center", &RandomAffine::center, is_center)},
          .draw = draw_affine,
      },
  };
}

}  // namespace lockstep::data
