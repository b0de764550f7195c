// The tables and operations of AutoAugment and RandAugment. A header, so that tests can compare them with
// torchvision's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "data/transforms/step.h"

namespace lockstep::data::augment {

enum class Op : std::uint8_t {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kInvert,
};

// The operations of RandAugment, in torchvision's order: all except kInvert.
inline constexpr std::int64_t kRandAugmentOps = static_cast<std::int64_t>(Op::kInvert);

struct Part {
  Op op;
  double p;       // probability
  int level = 0;  // of 10, for operations with a strength
};
using SubPolicy = std::array<Part, 2>;
using Policy = std::array<SubPolicy, 25>;

const Policy& policy_of(AutoAugmentPolicy policy);

// Whether the sign of the strength is random.
bool has_sign(Op op);

// The strength at `level`, when its range is divided into `bins` equal steps.
double magnitude_of(Op op, int level, int bins, ImageSize picture);

struct Drawn {
  Op op;
  double magnitude;  // with the drawn sign
};
using Take = std::function<void(const Drawn&)>;
// Draws the operations for a picture of this size, and calls `take` with each.
void draw(const AutoAugment& options, CounterRandom& random, ImageSize picture, const Take& take);
void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take);

// Appends the steps of the operation, as in torchvision.
void add_operation(SamplePlan& plan, const Drawn& drawn, Interpolation interpolation, const Fill& fill);

}  // namespace lockstep::data::augment
