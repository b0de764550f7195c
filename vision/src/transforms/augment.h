// The tables and operations of AutoAugment, RandAugment, TrivialAugmentWide and AugMix. A header, so that tests can
// compare them with torchvision's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "transforms/step.h"

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

// The operations of RandAugment and TrivialAugmentWide, in torchvision's order: all except kInvert.
inline constexpr std::int64_t kRandAugmentOps = static_cast<std::int64_t>(Op::kInvert);
// Those of AugMix; without `all_ops` the first kPartOfMixOps.
inline constexpr std::array kMixOps{Op::kShearX,    Op::kShearY,   Op::kTranslateX,   Op::kTranslateY, Op::kRotate,
                                    Op::kPosterize, Op::kSolarize, Op::kAutoContrast, Op::kEqualize,   Op::kBrightness,
                                    Op::kColor,     Op::kContrast, Op::kSharpness};
inline constexpr std::size_t kPartOfMixOps = 9;
inline constexpr int kMixBins = 10;

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

// Each operation's largest strength.
struct Strengths {
  double shear;
  double translate_x, translate_y;  // pixels
  double rotate;                    // degrees
  double factor;                    // of brightness, color, contrast and sharpness
  int bits;                         // that posterize keeps at strength 0
  int lost_bits;                    // how many fewer at the largest strength
};
// Of AutoAugment and RandAugment, of TrivialAugmentWide, and of AugMix.
Strengths auto_strengths(ImageSize picture);
Strengths trivial_strengths();
Strengths mix_strengths(ImageSize picture);

// The strength at `level`, when the range is divided into `bins` equal steps.
double magnitude_of(Op op, int level, int bins, const Strengths& most);
// Whether the strength depends on a level.
bool has_level(Op op);

struct Drawn {
  Op op;
  double magnitude;  // with the drawn sign
};
using Take = std::function<void(const Drawn&)>;
// Draws the operations for a picture of this size, and calls `take` with each.
void draw(const AutoAugment& options, CounterRandom& random, ImageSize picture, const Take& take);
void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take);
void draw(const TrivialAugmentWide& options, CounterRandom& random, ImageSize picture, const Take& take);
// One operation of a chain of AugMix.
Drawn draw_mix_op(const AugMix& options, CounterRandom& random, ImageSize picture);

// From the Dirichlet distribution with `count` equal parameters; the sum is 1.
std::vector<float> dirichlet(double alpha, int count, CounterRandom& random);

// Appends the steps of the operation, as in torchvision.
void add_operation(Plan& plan, const Drawn& drawn, Interpolation interpolation, const Fill& fill);

}  // namespace lockstep::data::augment
