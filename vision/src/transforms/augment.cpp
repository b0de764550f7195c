#include "transforms/augment.h"

#include <cmath>
#include <numbers>

#include "transforms/kind.h"

namespace lockstep::data {
namespace augment {
namespace {

using enum Op;

double shear_degrees(double magnitude) {
  return std::atan(magnitude) * (180.0 / std::numbers::pi);
}

Drawn with_sign(Op op, double magnitude, CounterRandom& random) {
  const bool negative = has_sign(op) && random.below(2) == 1;
  return {op, negative ? -magnitude : magnitude};
}

}  // namespace

bool has_sign(Op op) {
  return op >= kShearX && op <= kSharpness;
}

bool has_level(Op op) {
  return has_sign(op) || op == kPosterize || op == kSolarize;
}

Strengths rand_strengths(ImageSize picture) {
  return {0.3, 150.0 / 331.0 * picture.width, 150.0 / 331.0 * picture.height, 30.0, 0.9, 4};
}

Strengths trivial_strengths() {
  return {0.99, 32.0, 32.0, 135.0, 0.99, 6};
}

// torchvision's magnitudes are float32.
double magnitude_of(Op op, int level, int bins, const Strengths& most) {
  const double part = static_cast<double>(level) / (bins - 1);
  switch (op) {
    case kShearX:
    case kShearY: return static_cast<float>(most.shear * part);
    case kTranslateX: return static_cast<float>(most.translate_x * part);
    case kTranslateY: return static_cast<float>(most.translate_y * part);
    case kRotate: return static_cast<float>(most.rotate * part);
    case kBrightness:
    case kColor:
    case kContrast:
    case kSharpness: return static_cast<float>(most.factor * part);
    case kPosterize: return 8 - std::nearbyint(most.lost_bits * part);
    case kSolarize: return static_cast<float>(255.0 * (1.0 - part));
    default: return 0.0;
  }
}

void add_operation(Plan& plan, const Drawn& drawn, Interpolation interpolation, const Fill& fill) {
  const double magnitude = drawn.magnitude;
  const auto factor = static_cast<float>(1.0 + magnitude);
  const auto warp = [&](const AffineParameters& parameters) {
    add_step(plan, affine(plan.size, parameters, interpolation, fill.color));
  };
  switch (drawn.op) {
    case kIdentity: return;
    case kShearX: return warp({.shear = {shear_degrees(magnitude), 0}, .center = Point{0, 0}});
    case kShearY: return warp({.shear = {0, shear_degrees(magnitude)}, .center = Point{0, 0}});
    case kTranslateX: return warp({.translate = {std::trunc(magnitude), 0}});
    case kTranslateY: return warp({.translate = {0, std::trunc(magnitude)}});
    case kRotate:
      if (magnitude != 0.0) add_step(plan, rotation(plan.size, magnitude, interpolation, false, {}, fill.color));
      return;
    case kBrightness: return add_step(plan, BrightnessStep{factor});
    case kColor:
      if (plan.channels == 3) add_step(plan, SaturationStep{factor});
      return;
    case kContrast: return add_step(plan, ContrastStep{factor});
    case kSharpness: return add_step(plan, SharpnessStep{factor});
    case kPosterize: return add_step(plan, PosterizeStep{static_cast<int>(magnitude)});
    case kSolarize: return add_step(plan, SolarizeStep{magnitude});
    case kAutoContrast: return add_step(plan, AutoContrastStep{});
    case kEqualize: return add_step(plan, EqualizeStep{});
  }
}

void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take) {
  const Strengths most = rand_strengths(picture);
  for (int i = 0; i < options.num_ops; ++i) {
    const auto op = static_cast<Op>(random.below(kOps));
    take(with_sign(op, magnitude_of(op, options.magnitude, options.num_magnitude_bins, most), random));
  }
}

void draw(const TrivialAugmentWide& options, CounterRandom& random, ImageSize /*picture*/, const Take& take) {
  const auto op = static_cast<Op>(random.below(kOps));
  const int level = has_level(op) ? static_cast<int>(random.below(options.num_magnitude_bins)) : 0;
  take(with_sign(op, magnitude_of(op, level, options.num_magnitude_bins, trivial_strengths()), random));
}

}  // namespace augment

namespace {

template <typename Options>
void draw_augment(const Options& options, Drawing& d) {
  // As in torchvision, strengths depend on the size of the picture before all operations.
  augment::draw(options, d.random, d.plan.size, [&](const augment::Drawn& drawn) {
    augment::add_operation(d.plan, drawn, options.interpolation, options.fill);
  });
}

template <class T>
Parameter<T> bins() {
  return optional("num_magnitude_bins", &T::num_magnitude_bins, between(2, kFinite, "at least 2 num_magnitude_bins"));
}

}  // namespace

std::vector<Kind> augment_kinds() {
  return {
      About<RandAugment>{
          .name = "RandAugment",
          .parameters = {optional("num_ops", &RandAugment::num_ops, between(0, kFinite, "at least 0 num_ops")),
                         optional("magnitude", &RandAugment::magnitude), bins<RandAugment>(),
                         warp_filter<RandAugment>(), fill<RandAugment>()},
          .draw = draw_augment,
          .check =
              [](const auto& t, const Require& require) {
                require(t.magnitude >= 0 && t.magnitude < t.num_magnitude_bins,
                        "a magnitude from 0 to num_magnitude_bins - 1", t.magnitude);
              },
      },
      About<TrivialAugmentWide>{
          .name = "TrivialAugmentWide",
          .parameters = {bins<TrivialAugmentWide>(), warp_filter<TrivialAugmentWide>(), fill<TrivialAugmentWide>()},
          .draw = draw_augment,
      },
  };
}

}  // namespace lockstep::data
