// Checks the parameters of each transform by itself.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "transforms/check.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

// In the order of the variant: parse_test.cpp compares them.
constexpr std::array kNames{"Resize",
                            "CenterCrop",
                            "RandomResizedCrop",
                            "RandomCrop",
                            "RandomResize",
                            "ScaleJitter",
                            "FiveCrop",
                            "TenCrop",
                            "Pad",
                            "RandomHorizontalFlip",
                            "RandomVerticalFlip",
                            "RandomRotation",
                            "RandomAffine",
                            "RandomPerspective",
                            "ElasticTransform",
                            "ColorJitter",
                            "Grayscale",
                            "RandomGrayscale",
                            "GaussianBlur",
                            "RandomInvert",
                            "RandomPosterize",
                            "RandomSolarize",
                            "RandomAdjustSharpness",
                            "RandomAutocontrast",
                            "RandomEqualize",
                            "AutoAugment",
                            "RandAugment",
                            "TrivialAugmentWide",
                            "AugMix",
                            "Lambda",
                            "ToTensor",
                            "ConvertImageDtype",
                            "PILToTensor",
                            "Normalize",
                            "RandomErasing",
                            "RandomApply",
                            "RandomChoice",
                            "RandomOrder"};
static_assert(kNames.size() == std::variant_size_v<Transform::variant>);

// One overload for each transform.
class Checker {
 public:
  Checker(const std::string& place, std::string_view name) : place_(place), name_(name) {}

  void operator()(const Resize& t) {
    if (const auto* both = std::get_if<OutputSize>(&t.size)) {
      size(*both);
      return require(!t.max_size, "max_size only with one number as size", 2);
    }
    const int side = std::get<int>(t.size);
    require(side >= 1 && side <= kLargestSide, fmt::format("a size from 1 to {}", kLargestSide), side);
    if (t.max_size) require(*t.max_size > side, fmt::format("max_size above the size {}", side), *t.max_size);
  }
  void operator()(const CenterCrop& t) { size(t.size); }
  void operator()(const RandomResizedCrop& t) {
    size(t.size);
    range("scale", t.scale, 0.0, std::numeric_limits<double>::infinity());
    range("ratio", t.ratio, std::numeric_limits<double>::min(), std::numeric_limits<double>::infinity());
  }
  void operator()(const RandomCrop& t) {
    size(t.size);
    if (t.padding) padding(*t.padding);
  }
  void operator()(const RandomResize& t) {
    require(t.min_size >= 1 && t.min_size < t.max_size && t.max_size <= kLargestSide,
            fmt::format("1 <= min_size < max_size <= {}", kLargestSide),
            fmt::format("{} and {}", t.min_size, t.max_size));
  }
  void operator()(const ScaleJitter& t) {
    size(t.target_size);
    range("scale_range", t.scale_range, std::numeric_limits<double>::min(), kInfinity);
  }
  void operator()(const FiveCrop& t) { size(t.size); }
  void operator()(const TenCrop& t) { size(t.size); }
  void operator()(const Pad& t) { padding(t.padding); }
  void operator()(const RandomHorizontalFlip& t) { probability(t.p); }
  void operator()(const RandomVerticalFlip& t) { probability(t.p); }
  void operator()(const RandomRotation& t) {
    range("degrees", {t.degrees.low, t.degrees.high}, -kInfinity, kInfinity);
    center(t.center);
    warp_filter(t.interpolation);
  }
  void operator()(const RandomAffine& t) {
    range("degrees", {t.degrees.low, t.degrees.high}, -kInfinity, kInfinity);
    center(t.center);
    if (t.translate) {
      for (const double part : {t.translate->x, t.translate->y})
        require(part >= 0 && part <= 1, "translate from 0 to 1", part);
    }
    if (t.scale) range("scale", *t.scale, std::numeric_limits<double>::min(), kInfinity);
    if (t.shear) range("shear", {t.shear->low, t.shear->high}, -kInfinity, kInfinity);
    if (t.shear_y) range("shear_y", {t.shear_y->low, t.shear_y->high}, -kInfinity, kInfinity);
    warp_filter(t.interpolation);
  }
  void operator()(const RandomPerspective& t) {
    probability(t.p);
    require(t.distortion_scale >= 0 && t.distortion_scale <= 1, "a distortion_scale from 0 to 1", t.distortion_scale);
    warp_filter(t.interpolation);
  }
  void operator()(const ElasticTransform& t) {
    for (const double alpha : {t.alpha.x, t.alpha.y}) require(std::isfinite(alpha), "a finite alpha", alpha);
    const bool smooths = t.sigma.x > 0 && t.sigma.y > 0;
    const double most = std::max(t.sigma.x, t.sigma.y);
    require((smooths || (t.sigma.x == 0 && t.sigma.y == 0)) && 8 * most + 1 < kLargestSide,
            fmt::format("a sigma above 0 and below {} along both axes, or 0 along both", kLargestSide / 8),
            fmt::format("({}, {})", t.sigma.x, t.sigma.y));
    require(t.interpolation == Interpolation::kNearest || t.interpolation == Interpolation::kBilinear,
            "the interpolation kNearest or kBilinear", static_cast<int>(t.interpolation));
  }
  void operator()(const ColorJitter& t) {
    jitter("brightness", t.brightness, 0, kInfinity);
    jitter("contrast", t.contrast, 0, kInfinity);
    jitter("saturation", t.saturation, 0, kInfinity);
    jitter("hue", t.hue, -0.5, 0.5);
  }
  void operator()(const Grayscale& t) {
    require(t.num_output_channels == 1 || t.num_output_channels == 3, "1 or 3 output channels", t.num_output_channels);
  }
  void operator()(const RandomGrayscale& t) { probability(t.p); }
  void operator()(const GaussianBlur& t) {
    for (const int side : {t.kernel_size.x, t.kernel_size.y})
      require(side >= 1 && side <= kLargestSide && side % 2 == 1,
              fmt::format("an odd kernel size up to {}", kLargestSide), side);
    range("sigma", t.sigma, std::numeric_limits<double>::min(), kInfinity);
  }
  void operator()(const RandomInvert& t) { probability(t.p); }
  void operator()(const RandomPosterize& t) {
    probability(t.p);
    require(t.bits >= 1 && t.bits <= 8, "1 to 8 bits", t.bits);
  }
  void operator()(const RandomSolarize& t) {
    probability(t.p);
    require(t.threshold <= 255, "a threshold of at most 255", t.threshold);
  }
  void operator()(const RandomAdjustSharpness& t) {
    probability(t.p);
    require(t.sharpness_factor >= 0 && std::isfinite(t.sharpness_factor), "a sharpness_factor of at least 0",
            t.sharpness_factor);
  }
  void operator()(const RandomAutocontrast& t) { probability(t.p); }
  void operator()(const RandomEqualize& t) { probability(t.p); }
  void operator()(const AutoAugment& t) { warp_filter(t.interpolation); }
  void operator()(const RandAugment& t) {
    require(t.num_ops >= 0, "at least 0 num_ops", t.num_ops);
    require(t.num_magnitude_bins >= 2, "at least 2 num_magnitude_bins", t.num_magnitude_bins);
    require(t.magnitude >= 0 && t.magnitude < t.num_magnitude_bins, "a magnitude from 0 to num_magnitude_bins - 1",
            t.magnitude);
    warp_filter(t.interpolation);
  }
  void operator()(const TrivialAugmentWide& t) {
    require(t.num_magnitude_bins >= 2, "at least 2 num_magnitude_bins", t.num_magnitude_bins);
    warp_filter(t.interpolation);
  }
  void operator()(const AugMix& t) {
    require(t.severity >= 1 && t.severity <= 10, "a severity from 1 to 10", t.severity);
    require(t.mixture_width >= 1, "a mixture_width of at least 1", t.mixture_width);
    require(t.alpha > 0 && std::isfinite(t.alpha), "a positive alpha", t.alpha);
    warp_filter(t.interpolation);
  }
  void operator()(const Lambda& t) { require(static_cast<bool>(t.apply), "a function", "none"); }
  void operator()(const ToTensor& /*unused*/) {}
  void operator()(const ConvertImageDtype& /*unused*/) {}
  void operator()(const PILToTensor& /*unused*/) {}
  void operator()(const Normalize& t) {
    for (const std::vector<double>* list : {&t.mean, &t.std}) {
      require(list->size() == 1 || list->size() == 3, "1 or 3 numbers in mean and std", list->size());
    }
    for (const double value : t.mean) require(std::isfinite(static_cast<float>(value)), "a finite mean", value);
    // Samples are float32: a std that has not all its digits there cannot divide.
    for (const double value : t.std)
      require(value > 0 && std::isnormal(static_cast<float>(value)), "a positive std within the range of float32",
              value);
  }
  void operator()(const RandomApply& t) {
    probability(t.p);
    listed(t.transforms);
  }
  void operator()(const RandomChoice& t) {
    listed(t.transforms);
    require(t.p.empty() || t.p.size() == t.transforms.size(),
            fmt::format("no p, or one number in p for each of {} transforms", t.transforms.size()), t.p.size());
    double sum = 0.0;
    for (const double p : t.p) {
      require(p >= 0 && std::isfinite(p), "no negative number in p", p);
      sum += p;
    }
    require(t.p.empty() || (sum > 0 && std::isfinite(sum)), "a positive number in p", sum);
  }
  void operator()(const RandomOrder& t) { listed(t.transforms); }
  void operator()(const RandomErasing& t) {
    probability(t.p);
    range("scale", t.scale, 0.0, 1.0);
    range("ratio", t.ratio, std::numeric_limits<double>::min(), kInfinity);
    require(t.value.size() == 1 || t.value.size() == 3, "1 or 3 numbers in value", t.value.size());
    for (const double value : t.value) require(std::isfinite(value), "a finite value", value);
  }

 private:
  template <class T>
  void require(bool right, std::string_view expected, const T& found) const {
    if (!right) fail_transform(place_, name_, expected, fmt::format("{}", found));
  }
  static constexpr int kLargestSide = 65536;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  void size(const OutputSize& s) const {
    for (const int side : {s.height, s.width}) {
      require(side >= 1 && side <= kLargestSide, fmt::format("a size from 1 to {}", kLargestSide), side);
    }
  }
  void padding(const Padding& p) const {
    for (const int amount : {p.left, p.top, p.right, p.bottom}) {
      require(amount >= -kLargestSide && amount <= kLargestSide,
              fmt::format("padding from {} to {}", -kLargestSide, kLargestSide), amount);
    }
  }
  void listed(const std::vector<Transform>& transforms) const {
    require(!transforms.empty(), "at least one transform", "none");
  }
  void probability(double p) const { require(p >= 0 && p <= 1, "a probability p from 0 to 1", p); }
  void range(std::string_view what, const Interval01& r, double low, double high) const {
    require(low <= r.low && r.low <= r.high && r.high <= high && std::isfinite(r.low) && std::isfinite(r.high),
            fmt::format("{} (low, high) within {} and {}", what, low, high), fmt::format("({}, {})", r.low, r.high));
  }
  void jitter(std::string_view what, const Jitter& j, double low, double high) const {
    if (j.amount) {
      require(*j.amount >= 0 && std::isfinite(*j.amount) && (low == 0 || *j.amount <= high),
              fmt::format("a {} of at least 0, at most {}", what, high), *j.amount);
    } else {
      range(what, {j.low, j.high}, low, high);
    }
  }
  void center(const std::optional<Point>& c) const {
    require(!c || (std::isfinite(c->x) && std::isfinite(c->y)), "a finite center", c ? c->x : 0.0);
  }
  void warp_filter(Interpolation i) const {
    require(i == Interpolation::kNearest || i == Interpolation::kBilinear || i == Interpolation::kBicubic,
            "the interpolation kNearest, kBilinear or kBicubic", static_cast<int>(i));
  }

  const std::string& place_;
  std::string_view name_;
};

}  // namespace

std::string_view name_of(const Transform& transform) {
  return kNames[transform.index()];
}

void fail_transform(const std::string& place, std::string_view name, std::string_view expected,
                    std::string_view found) {
  throw DataError(ErrorCode::kInvalidArgument,
                  fmt::format("{}, {}: expected {}, found {}", place, name, expected, found));
}

void check_grey_fill(const Transform& transform, const std::string& place) {
  const auto check = [&](const auto& t) {
    if constexpr (requires { t.fill.color; }) {
      const auto [red, green, blue] = t.fill.color;
      if (red == green && green == blue) return;
      fail_transform(place, name_of(transform), "one number as the fill of pictures with one channel",
                     fmt::format("({}, {}, {})", red, green, blue));
    }
  };
  std::visit(check, transform);
}

void check_parameters(const Transform& transform, const std::string& place) {
  std::visit(Checker(place, name_of(transform)), transform);
}

}  // namespace lockstep::data
