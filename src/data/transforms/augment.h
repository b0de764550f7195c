// The tables and operations of AutoAugment and RandAugment, apart so that tests can hold them against torchvision's.
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

// What RandAugment chooses from, in torchvision's order: all but kInvert.
inline constexpr std::int64_t kRandAugmentOps = static_cast<std::int64_t>(Op::kInvert);

struct Part {
  Op op;
  double p;       // with which probability
  int level = 0;  // of 10; where the operation has strengths
};
using SubPolicy = std::array<Part, 2>;
using Policy = std::array<SubPolicy, 25>;

const Policy& policy_of(AutoAugmentPolicy policy);

// Whether the strength's sign is drawn.
bool has_sign(Op op);

// Strength `level` of `bins` even ones.
double magnitude_of(Op op, int level, int bins, ImageSize picture);

struct Drawn {
  Op op;
  double magnitude;  // with its sign
};
using Take = std::function<void(const Drawn&)>;
// Hands over what is drawn for a picture of this size, one operation after the other.
void draw(const AutoAugment& options, CounterRandom& random, ImageSize picture, const Take& take);
void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take);

// The operation as torchvision does it.
void add_operation(SamplePlan& plan, const Drawn& drawn, Interpolation interpolation, const Fill& fill);

}  // namespace lockstep::data::augment
