#include "data/transforms/check.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

// Checks one transform. Errors read "transform 2 of Compose, Resize: expected ..., found ...".
class Checker {
 public:
  explicit Checker(std::size_t position) : position_(position) {}

  void operator()(const Resize& t) {
    name_ = "Resize";
    if (const auto* both = std::get_if<OutputSize>(&t.size)) {
      size(*both);
      return require(!t.max_size, "max_size only with one number as size", 2);
    }
    const int side = std::get<int>(t.size);
    require(side >= 1 && side <= kLargestSide, fmt::format("a size from 1 to {}", kLargestSide), side);
    if (t.max_size) require(*t.max_size > side, fmt::format("max_size above the size {}", side), *t.max_size);
  }
  void operator()(const CenterCrop& t) {
    name_ = "CenterCrop";
    size(t.size);
  }
  void operator()(const RandomResizedCrop& t) {
    name_ = "RandomResizedCrop";
    size(t.size);
    range("scale", t.scale, 0.0, std::numeric_limits<double>::infinity());
    range("ratio", t.ratio, std::numeric_limits<double>::min(), std::numeric_limits<double>::infinity());
  }
  void operator()(const RandomCrop& t) {
    name_ = "RandomCrop";
    size(t.size);
    if (t.padding) padding(*t.padding);
  }
  void operator()(const Pad& t) {
    name_ = "Pad";
    padding(t.padding);
  }
  void operator()(const RandomHorizontalFlip& t) {
    name_ = "RandomHorizontalFlip";
    probability(t.p);
  }
  void operator()(const RandomVerticalFlip& t) {
    name_ = "RandomVerticalFlip";
    probability(t.p);
  }
  void operator()(const RandomRotation& t) {
    name_ = "RandomRotation";
    range("degrees", {t.degrees.low, t.degrees.high}, -kInfinity, kInfinity);
    warp_filter(t.interpolation);
  }
  void operator()(const RandomAffine& t) {
    name_ = "RandomAffine";
    range("degrees", {t.degrees.low, t.degrees.high}, -kInfinity, kInfinity);
    if (t.translate) {
      for (const double part : {t.translate->x, t.translate->y})
        require(part >= 0 && part <= 1, "translate from 0 to 1", part);
    }
    if (t.scale) range("scale", *t.scale, std::numeric_limits<double>::min(), kInfinity);
    if (t.shear) range("shear", {t.shear->low, t.shear->high}, -kInfinity, kInfinity);
    if (t.shear_y) range("shear_y", {t.shear_y->low, t.shear_y->high}, -kInfinity, kInfinity);
    warp_filter(t.interpolation);
  }
  void operator()(const ColorJitter& t) {
    name_ = "ColorJitter";
    jitter("brightness", t.brightness, 0, kInfinity);
    jitter("contrast", t.contrast, 0, kInfinity);
    jitter("saturation", t.saturation, 0, kInfinity);
    jitter("hue", t.hue, -0.5, 0.5);
  }
  void operator()(const Grayscale& t) {
    name_ = "Grayscale";
    require(t.num_output_channels == 1 || t.num_output_channels == 3, "1 or 3 output channels", t.num_output_channels);
  }
  void operator()(const RandomGrayscale& t) {
    name_ = "RandomGrayscale";
    probability(t.p);
  }
  void operator()(const GaussianBlur& t) {
    name_ = "GaussianBlur";
    for (const int side : {t.kernel_size.height, t.kernel_size.width})
      require(side >= 1 && side <= kLargestSide && side % 2 == 1,
              fmt::format("an odd kernel size up to {}", kLargestSide), side);
    range("sigma", t.sigma, std::numeric_limits<double>::min(), kInfinity);
  }
  void operator()(const AutoAugment& t) {
    name_ = "AutoAugment";
    warp_filter(t.interpolation);
  }
  void operator()(const RandAugment& t) {
    name_ = "RandAugment";
    require(t.num_ops >= 0, "at least 0 num_ops", t.num_ops);
    require(t.num_magnitude_bins >= 2, "at least 2 num_magnitude_bins", t.num_magnitude_bins);
    require(t.magnitude >= 0 && t.magnitude < t.num_magnitude_bins, "a magnitude from 0 to num_magnitude_bins - 1",
            t.magnitude);
    warp_filter(t.interpolation);
  }
  void operator()(const Lambda& t) {
    name_ = "Lambda";
    require(static_cast<bool>(t.apply), "a function", "none");
  }
  void operator()(const ToTensor& /*unused*/) { name_ = "ToTensor"; }
  void operator()(const Normalize& t) {
    name_ = "Normalize";
    for (const std::vector<double>* list : {&t.mean, &t.std}) {
      require(list->size() == 1 || list->size() == 3, "1 or 3 numbers in mean and std", list->size());
    }
    for (const double value : t.std) require(value > 0, "a positive std", value);
  }
  void operator()(const RandomErasing& t) {
    name_ = "RandomErasing";
    probability(t.p);
    range("scale", t.scale, 0.0, 1.0);
    range("ratio", t.ratio, std::numeric_limits<double>::min(), kInfinity);
    require(t.value.size() == 1 || t.value.size() == 3, "1 or 3 numbers in value", t.value.size());
  }

  template <class T>
  void require(bool right, std::string_view expected, const T& found) const {
    if (right) return;
    throw DataError(ErrorCode::kInvalidArgument, fmt::format("transform {} of Compose, {}: expected {}, found {}",
                                                             position_, name_, expected, found));
  }

 private:
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
  void warp_filter(Interpolation i) const {
    require(i == Interpolation::kNearest || i == Interpolation::kBilinear || i == Interpolation::kBicubic,
            "the interpolation kNearest, kBilinear or kBicubic", static_cast<int>(i));
  }

  std::size_t position_;
  std::string_view name_;
};

// Lists have one number for all channels, or one for each channel.
void check_channels(const Checker& checker, const Transform& transform, std::size_t channels) {
  std::vector<std::size_t> counts;
  if (const auto* normalize = std::get_if<Normalize>(&transform)) {
    counts = {normalize->mean.size(), normalize->std.size()};
  }
  if (const auto* erasing = std::get_if<RandomErasing>(&transform)) counts = {erasing->value.size()};
  for (const std::size_t count : counts) {
    checker.require(count == 1 || count == channels, fmt::format("1 number, or one for each of {} channels", channels),
                    count);
  }
}

}  // namespace

void check_transforms(const std::vector<Transform>& transforms) {
  bool floats = false;
  bool normalized = false;
  std::size_t channels = 3;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    Checker checker(i);
    std::visit(checker, transforms[i]);
    const bool converts = std::holds_alternative<ToTensor>(transforms[i]);
    const bool normalizes = std::holds_alternative<Normalize>(transforms[i]);
    const bool on_floats = normalizes || std::holds_alternative<RandomErasing>(transforms[i]);
    checker.require(!(converts && floats), "ToTensor once", "it again");
    checker.require(!(normalizes && normalized), "Normalize once", "it again");
    checker.require(!on_floats || floats, "ToTensor before it", "none");
    checker.require(on_floats || converts || !floats, "transforms of pixels before ToTensor", "this one after it");
    if (const auto* grey = std::get_if<Grayscale>(&transforms[i])) {
      channels = static_cast<std::size_t>(grey->num_output_channels);
    }
    check_channels(checker, transforms[i], channels);
    floats |= converts;
    normalized |= normalizes;
  }
}

}  // namespace lockstep::data
