// AutoAugment, RandAugment, TrivialAugmentWide and AugMix: their operations and strengths. The policies are the tables
// of the paper (Cubuk et al., 2018) in torchvision's version.
#include "transforms/augment.h"

#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>

#include "transforms/kind.h"

namespace lockstep::data {
namespace augment {
namespace {

using enum Op;

constexpr Policy kImageNetPolicy{{
    {{{kPosterize, 0.4, 8}, {kRotate, 0.6, 9}}}, {{{kSolarize, 0.6, 5}, {kAutoContrast, 0.6}}},
    {{{kEqualize, 0.8}, {kEqualize, 0.6}}},      {{{kPosterize, 0.6, 7}, {kPosterize, 0.6, 6}}},
    {{{kEqualize, 0.4}, {kSolarize, 0.2, 4}}},   {{{kEqualize, 0.4}, {kRotate, 0.8, 8}}},
    {{{kSolarize, 0.6, 3}, {kEqualize, 0.6}}},   {{{kPosterize, 0.8, 5}, {kEqualize, 1.0}}},
    {{{kRotate, 0.2, 3}, {kSolarize, 0.6, 8}}},  {{{kEqualize, 0.6}, {kPosterize, 0.4, 6}}},
    {{{kRotate, 0.8, 8}, {kColor, 0.4, 0}}},     {{{kRotate, 0.4, 9}, {kEqualize, 0.6}}},
    {{{kEqualize, 0.0}, {kEqualize, 0.8}}},      {{{kInvert, 0.6}, {kEqualize, 1.0}}},
    {{{kColor, 0.6, 4}, {kContrast, 1.0, 8}}},   {{{kRotate, 0.8, 8}, {kColor, 1.0, 2}}},
    {{{kColor, 0.8, 8}, {kSolarize, 0.8, 7}}},   {{{kSharpness, 0.4, 7}, {kInvert, 0.6}}},
    {{{kShearX, 0.6, 5}, {kEqualize, 1.0}}},     {{{kColor, 0.4, 0}, {kEqualize, 0.6}}},
    {{{kEqualize, 0.4}, {kSolarize, 0.2, 4}}},   {{{kSolarize, 0.6, 5}, {kAutoContrast, 0.6}}},
    {{{kInvert, 0.6}, {kEqualize, 1.0}}},        {{{kColor, 0.6, 4}, {kContrast, 1.0, 8}}},
    {{{kEqualize, 0.8}, {kEqualize, 0.6}}},
}};

constexpr Policy kCifar10Policy{{
    {{{kInvert, 0.1}, {kContrast, 0.2, 6}}},         {{{kRotate, 0.7, 2}, {kTranslateX, 0.3, 9}}},
    {{{kSharpness, 0.8, 1}, {kSharpness, 0.9, 3}}},  {{{kShearY, 0.5, 8}, {kTranslateY, 0.7, 9}}},
    {{{kAutoContrast, 0.5}, {kEqualize, 0.9}}},      {{{kShearY, 0.2, 7}, {kPosterize, 0.3, 7}}},
    {{{kColor, 0.4, 3}, {kBrightness, 0.6, 7}}},     {{{kSharpness, 0.3, 9}, {kBrightness, 0.7, 9}}},
    {{{kEqualize, 0.6}, {kEqualize, 0.5}}},          {{{kContrast, 0.6, 7}, {kSharpness, 0.6, 5}}},
    {{{kColor, 0.7, 7}, {kTranslateX, 0.5, 8}}},     {{{kEqualize, 0.3}, {kAutoContrast, 0.4}}},
    {{{kTranslateY, 0.4, 3}, {kSharpness, 0.2, 6}}}, {{{kBrightness, 0.9, 6}, {kColor, 0.2, 8}}},
    {{{kSolarize, 0.5, 2}, {kInvert, 0.0}}},         {{{kEqualize, 0.2}, {kAutoContrast, 0.6}}},
    {{{kEqualize, 0.2}, {kEqualize, 0.6}}},          {{{kColor, 0.9, 9}, {kEqualize, 0.6}}},
    {{{kAutoContrast, 0.8}, {kSolarize, 0.2, 8}}},   {{{kBrightness, 0.1, 3}, {kColor, 0.7, 0}}},
    {{{kSolarize, 0.4, 5}, {kAutoContrast, 0.9}}},   {{{kTranslateY, 0.9, 9}, {kTranslateY, 0.7, 9}}},
    {{{kAutoContrast, 0.9}, {kSolarize, 0.8, 3}}},   {{{kEqualize, 0.8}, {kInvert, 0.1}}},
    {{{kTranslateY, 0.7, 9}, {kAutoContrast, 0.9}}},
}};

constexpr Policy kSvhnPolicy{{
    {{{kShearX, 0.9, 4}, {kInvert, 0.2}}},          {{{kShearY, 0.9, 8}, {kInvert, 0.7}}},
    {{{kEqualize, 0.6}, {kSolarize, 0.6, 6}}},      {{{kInvert, 0.9}, {kEqualize, 0.6}}},
    {{{kEqualize, 0.6}, {kRotate, 0.9, 3}}},        {{{kShearX, 0.9, 4}, {kAutoContrast, 0.8}}},
    {{{kShearY, 0.9, 8}, {kInvert, 0.4}}},          {{{kShearY, 0.9, 5}, {kSolarize, 0.2, 6}}},
    {{{kInvert, 0.9}, {kAutoContrast, 0.8}}},       {{{kEqualize, 0.6}, {kRotate, 0.9, 3}}},
    {{{kShearX, 0.9, 4}, {kSolarize, 0.3, 3}}},     {{{kShearY, 0.8, 8}, {kInvert, 0.7}}},
    {{{kEqualize, 0.9}, {kTranslateY, 0.6, 6}}},    {{{kInvert, 0.9}, {kEqualize, 0.6}}},
    {{{kContrast, 0.3, 3}, {kRotate, 0.8, 4}}},     {{{kInvert, 0.8}, {kTranslateY, 0.0, 2}}},
    {{{kShearY, 0.7, 6}, {kSolarize, 0.4, 8}}},     {{{kInvert, 0.6}, {kRotate, 0.8, 4}}},
    {{{kShearY, 0.3, 7}, {kTranslateX, 0.9, 3}}},   {{{kShearX, 0.1, 6}, {kInvert, 0.6}}},
    {{{kSolarize, 0.7, 2}, {kTranslateY, 0.6, 7}}}, {{{kShearY, 0.8, 4}, {kInvert, 0.8}}},
    {{{kShearX, 0.7, 9}, {kTranslateY, 0.8, 3}}},   {{{kShearY, 0.8, 5}, {kAutoContrast, 0.7}}},
    {{{kShearX, 0.7, 2}, {kInvert, 0.1}}},
}};

double shear_degrees(double magnitude) {
  return std::atan(magnitude) * (180.0 / std::numbers::pi);
}

}  // namespace

const Policy& policy_of(AutoAugmentPolicy policy) {
  switch (policy) {
    case AutoAugmentPolicy::kImageNet: return kImageNetPolicy;
    case AutoAugmentPolicy::kCifar10: return kCifar10Policy;
    case AutoAugmentPolicy::kSvhn: return kSvhnPolicy;
  }
  return kImageNetPolicy;
}

bool has_sign(Op op) {
  return op >= kShearX && op <= kSharpness;
}

bool has_level(Op op) {
  return has_sign(op) || op == kPosterize || op == kSolarize;
}

Strengths auto_strengths(ImageSize picture) {
  return {0.3, 150.0 / 331.0 * picture.width, 150.0 / 331.0 * picture.height, 30.0, 0.9, 8, 4};
}

Strengths trivial_strengths() {
  return {0.99, 32.0, 32.0, 135.0, 0.99, 8, 6};
}

Strengths mix_strengths(ImageSize picture) {
  return {0.3, picture.width / 3.0, picture.height / 3.0, 30.0, 0.9, 4, 4};
}

double magnitude_of(Op op, int level, int bins, const Strengths& most) {
  const double part = bins > 1 ? static_cast<double>(level) / (bins - 1) : 0.0;
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
    case kPosterize: return most.bits - std::nearbyint(most.lost_bits * part);
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
    case kInvert: return add_step(plan, InvertStep{});
  }
}

void draw(const AutoAugment& options, CounterRandom& random, ImageSize picture, const Take& take) {
  constexpr int kBins = 10;
  const Policy& policy = policy_of(options.policy);
  const Strengths most = auto_strengths(picture);
  const SubPolicy& parts = policy[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(policy.size())))];
  for (const Part& part : parts) {
    const bool wanted = random.uniform() <= part.p;
    const bool negative = random.below(2) == 0;
    if (!wanted) continue;
    const double magnitude = magnitude_of(part.op, part.level, kBins, most);
    take({part.op, has_sign(part.op) && negative ? -magnitude : magnitude});
  }
}

void draw(const RandAugment& options, CounterRandom& random, ImageSize picture, const Take& take) {
  const Strengths most = auto_strengths(picture);
  for (int i = 0; i < options.num_ops; ++i) {
    const auto op = static_cast<Op>(random.below(kRandAugmentOps));
    const double magnitude = magnitude_of(op, options.magnitude, options.num_magnitude_bins, most);
    const bool negative = has_sign(op) && random.below(2) == 1;
    take({op, negative ? -magnitude : magnitude});
  }
}

void draw(const TrivialAugmentWide& options, CounterRandom& random, ImageSize /*picture*/, const Take& take) {
  const auto op = static_cast<Op>(random.below(kRandAugmentOps));
  const int level = has_level(op) ? static_cast<int>(random.below(options.num_magnitude_bins)) : 0;
  const double magnitude = magnitude_of(op, level, options.num_magnitude_bins, trivial_strengths());
  const bool negative = has_sign(op) && random.below(2) == 1;
  take({op, negative ? -magnitude : magnitude});
}

Drawn draw_mix_op(const AugMix& options, CounterRandom& random, ImageSize picture) {
  const std::size_t count = options.all_ops ? kMixOps.size() : kPartOfMixOps;
  const Op op = kMixOps[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)))];
  const int level = has_level(op) ? static_cast<int>(random.below(options.severity)) : 0;
  const double magnitude = magnitude_of(op, level, kMixBins, mix_strengths(picture));
  const bool negative = has_sign(op) && random.below(2) == 1;
  return {op, negative ? -magnitude : magnitude};
}

std::vector<float> dirichlet(double alpha, int count, CounterRandom& random) {
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) number = random.gamma(alpha);
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  std::vector<float> weights;
  weights.reserve(numbers.size());
  // Numbers for a tiny alpha may all be too small for a double.
  for (const double number : numbers) weights.push_back(static_cast<float>(sum > 0.0 ? number / sum : 1.0 / count));
  return weights;
}

}  // namespace augment

namespace {

void read_policy(const TextValue& value, AutoAugment& t) {
  using enum AutoAugmentPolicy;
  text::read_word<AutoAugmentPolicy>(value, t.policy,
                                     {{"imagenet", kImageNet}, {"cifar10", kCifar10}, {"svhn", kSvhn}});
}

template <typename Options>
void draw_augment(const Options& options, Drawing& d) {
  // As in torchvision, strengths depend on the size of the picture before all operations.
  augment::draw(options, d.random, d.plan.size, [&](const augment::Drawn& drawn) {
    augment::add_operation(d.plan, drawn, options.interpolation, options.fill);
  });
}

void draw_mix(const AugMix& options, Drawing& d) {
  constexpr int kMostDepth = 3;
  const std::vector<float> shares = augment::dirichlet(options.alpha, 2, d.random);
  MixStep mix{shares[0], {}};
  const auto before = static_cast<std::ptrdiff_t>(d.plan.steps.size());
  for (const float weight : augment::dirichlet(options.alpha, options.mixture_width, d.random)) {
    const int depth = options.chain_depth > 0 ? options.chain_depth : 1 + static_cast<int>(d.random.below(kMostDepth));
    for (int i = 0; i < depth; ++i) {
      augment::add_operation(d.plan, augment::draw_mix_op(options, d.random, d.plan.size), options.interpolation,
                             options.fill);
    }
    // The operations of a chain are not steps of the sample.
    const std::size_t begin = d.plan.chain_steps.size();
    const auto first = d.plan.steps.begin() + before;
    d.plan.chain_steps.insert(d.plan.chain_steps.end(), std::make_move_iterator(first),
                              std::make_move_iterator(d.plan.steps.end()));
    d.plan.steps.erase(first, d.plan.steps.end());
    mix.chains.push_back({weight * shares[1], begin, d.plan.chain_steps.size()});
  }
  d.add(std::move(mix));
}

template <class T>
Parameter<T> bins() {
  return optional("num_magnitude_bins", &T::num_magnitude_bins, between(2, kFinite, "at least 2 num_magnitude_bins"));
}

}  // namespace

std::vector<Kind> augment_kinds() {
  return {
      About<AutoAugment>{
          .name = "AutoAugment",
          .parameters = {{{"policy", false}, read_policy}, warp_filter<AutoAugment>(), fill<AutoAugment>()},
          .draw = draw_augment,
      },
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
      About<AugMix>{
          .name = "AugMix",
          .parameters = {optional("severity", &AugMix::severity, between(1, 10, "a severity from 1 to 10")),
                         optional("mixture_width", &AugMix::mixture_width,
                                  between(1, kFinite, "a mixture_width of at least 1")),
                         optional("chain_depth", &AugMix::chain_depth),
                         optional("alpha", &AugMix::alpha, between(kAboveZero, kFinite, "a positive alpha")),
                         optional("all_ops", &AugMix::all_ops), warp_filter<AugMix>(), fill<AugMix>()},
          .draw = draw_mix,
      },
  };
}

}  // namespace lockstep::data
