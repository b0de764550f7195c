// Damaged files through whole pipelines: each gives an error, or a sample with every number written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "image/damage.h"
#include "image/encoders.h"
#include "lockstep/data/errors.h"
#include "lockstep/transforms/compose.h"
#include "support/effort.h"

namespace lockstep::data {
namespace {

std::vector<Compose> pipelines() {
  const std::vector<std::vector<Transform>> all{
      {ToTensor{}},
      {CenterCrop{24}, Grayscale{}, ToTensor{}},
      {RandomChoice{{TrivialAugmentWide{}, RandomOrder{{RandomEqualize{}, RandomPosterize{2}}}}}, ToTensor{},
       GaussianBlur{3}},
      {RandomResizedCrop{16}, RandomHorizontalFlip{}, RandomRotation{45}, RandomAffine{45}, ColorJitter{.hue = 0.1},
       ToTensor{}, Normalize{{0.5}, {0.2}}}};
  std::vector<Compose> made;
  for (const std::vector<Transform>& transforms : all) {
    for (const Precision precision : {Precision::kFast, Precision::kExact}) made.emplace_back(transforms, precision);
  }
  return made;
}

// Returns whether there was a sample.
bool run(const Compose& compose, std::span<const std::uint8_t> bytes, const DecodeOptions& options, int trial) {
  const Result<ImageSize> size = image_size(bytes, options);
  if (!size.ok()) return false;
  const SamplePlan plan = compose.draw(size.value(), {1, 0, trial});
  // Exactly as large as the shape says, so that sanitizers see writes behind the end.
  std::vector<float> out(Compose::shape_of(plan).bytes() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  try {
    compose.apply(plan, bytes, options, out.data());
  } catch (const DataError& error) {
    EXPECT_NE(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return false;
  }
  for (const float value : out) EXPECT_FALSE(std::isnan(value));
  return true;
}

TEST(ComposeFuzz, SamplesAreWhole) {
  const Image picture = test::make_picture(49, 35);
  const std::vector<std::vector<std::uint8_t>> originals{test::encode_jpeg(picture),
                                                         test::encode_jpeg(picture, {.components = 1}),
                                                         test::encode_jpeg(picture, {.components = 4}),
                                                         test::with_orientation(test::encode_jpeg(picture), 5),
                                                         test::encode_png(picture, {.color_type = 0, .bits = 16}),
                                                         test::encode_webp(picture),
                                                         test::encode_bmp(picture)};
  const std::vector<Compose> composed = pipelines();
  std::mt19937 random(3);
  int samples = 0;
  const int trials = test::repetitions(4000);
  for (int trial = 0; trial < trials && !HasFailure(); ++trial) {
    const auto bytes = test::damaged(originals[static_cast<std::size_t>(trial) % originals.size()], random);
    const DecodeOptions options{.max_pixels = 1 << 16, .apply_orientation = trial % 2 == 0};
    samples += run(composed[random() % composed.size()], bytes, options, trial) ? 1 : 0;
  }
  EXPECT_GT(samples, trials / 20);
}

}  // namespace
}  // namespace lockstep::data
