// The operations of RandAugment and TrivialAugmentWide. A header, so that tests can compare them with torchvision's.
#pragma once

#include <cstdint>
#include <functional>

#include "transforms/step.h"

namespace lockstep::data::augment {

// In torchvision's order.
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
};
inline constexpr std::int64_t kOps = static_cast<std::int64_t>(Op::kEqualize) + 1;

// Whether the sign of the strength is random.
bool has_sign(Op op);
// Whether the strength depends on a level.
bool has_level(Op op);

// Each operation's largest strength.
struct Strengths {
  double shear;
  double translate_x, translate_y;  // pixels
  double rotate;                    // degrees
  double factor;                    // of brightness, color, contrast and sharpness
  int lost_bits;                    // how many of 8 bits posterize drops
};
Strengths rand_strengths(ImageSize picture);
Strengths trivial_strengths();

// The strength at `level`, when the range is divided into `bins` equal steps.
double magnitude_of(Op op, int level, int bins, const Strengths& most);

struct Drawn {
  Op op;
  double magnitude;  // with the drawn sign
};
using Take = std::function<void(const Drawn&)>;
// Draws the operations for a picture of this size, and calls `take` with each.
void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take);
void draw(const TrivialAugmentWide& options, CounterRandom& random, ImageSize picture, const Take& take);

// Appends the steps of the operation.
void add_operation(Plan& plan, const Drawn& drawn, Interpolation interpolation, const Fill& fill);

}  // namespace lockstep::data::augment
