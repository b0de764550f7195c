// Lists of transforms, and transforms of floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "image/encoders.h"
#include "lockstep/data/errors.h"
#include "transforms/step.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kDraws = 10'000;
constexpr ImageSize kSize{40, 30};

// One letter for each step.
std::string letters(const SamplePlan& plan) {
  std::string found;
  for (const Step& step : plan->steps) {
    if (std::holds_alternative<InvertStep>(step)) found += 'i';
    if (std::holds_alternative<EqualizeStep>(step)) found += 'e';
    if (std::holds_alternative<AutoContrastStep>(step)) found += 'a';
  }
  return found;
}

// How often each sequence of steps was drawn, as a share.
std::map<std::string, double> shares(const Compose& compose) {
  std::map<std::string, double> found;
  for (std::int64_t i = 0; i < kDraws; ++i) found[letters(compose.draw(kSize, {3, 1, i}))] += 1.0 / kDraws;
  return found;
}

const RandomInvert kInvert{1.0};
const RandomEqualize kEqualize{1.0};
const RandomAutocontrast kAutocontrast{1.0};

TEST(TransformLists, AreDrawnAsOftenAsAsked) {
  std::map<std::string, double> found = shares(Compose({RandomApply{{kInvert, kEqualize}, 0.3}}));
  EXPECT_EQ(found.size(), 2U);
  EXPECT_NEAR(found["ie"], 0.3, 0.015);
  found = shares(Compose({RandomChoice{{kInvert, kEqualize, kAutocontrast}, {2.0, 0.0, 6.0}}}));
  EXPECT_EQ(found.size(), 2U);
  EXPECT_NEAR(found["i"], 0.25, 0.015);
  found = shares(Compose({RandomChoice{{kInvert, kEqualize, kAutocontrast}}}));
  for (const char* one : {"i", "e", "a"}) EXPECT_NEAR(found[one], 1.0 / 3, 0.015);
  found = shares(Compose({RandomOrder{{kInvert, kEqualize, kAutocontrast}}}));
  EXPECT_EQ(found.size(), 6U);
  for (const auto& [order, share] : found) EXPECT_NEAR(share, 1.0 / 6, 0.015) << order;
  // Lists within lists.
  found = shares(Compose({RandomApply{{RandomChoice{{kInvert, RandomOrder{{kEqualize, kAutocontrast}}}}}, 0.5}}));
  EXPECT_NEAR(found[""], 0.5, 0.02);
  EXPECT_NEAR(found["i"], 0.25, 0.02);
  EXPECT_NEAR(found["ea"], 0.125, 0.02);
  EXPECT_NEAR(found["ae"], 0.125, 0.02);
}

TEST(TransformLists, AlwaysAndNever) {
  EXPECT_EQ(shares(Compose({RandomApply{{kInvert}, 1.0}})).size(), 1U);
  EXPECT_EQ(shares(Compose({RandomApply{{kInvert}, 0.0}})).count("i"), 0U);
}

// The numbers of a transform do not depend on what the others drew, nor on whether they were taken.
TEST(TransformLists, TransformsHaveNumbersOfTheirOwn) {
  const auto crop = [](const Transform& first, std::int64_t index) {
    const Compose compose({first, RandomCrop{10}});
    return std::get<CropStep>(compose.draw(kSize, {9, 2, index})->steps.back()).box;
  };
  int different = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    const Box expected = crop(RandomApply{{RandomRotation{30}, kInvert}, 0.0}, i);
    EXPECT_EQ(crop(RandomApply{{RandomRotation{30}, kInvert}, 1.0}, i), expected);
    EXPECT_EQ(crop(RandomChoice{{RandomRotation{30}, kInvert}}, i), expected);
    different += crop(RandomApply{{RandomRotation{30}}, 1.0}, i) != expected ? 1 : 0;
  }
  EXPECT_GT(different, 25);
}

// Two of the same in one list do not draw the same.
TEST(TransformLists, EqualTransformsDrawDifferentNumbers) {
  const Compose compose({RandomApply{{RandomCrop{20}, RandomCrop{10}}, 1.0}});
  int equal = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const SamplePlan plan = compose.draw({39, 39}, {1, 0, i});
    const Box first = std::get<CropStep>(plan->steps.at(0)).box;
    const Box second = std::get<CropStep>(plan->steps.at(1)).box;
    equal += first.left / 2 == second.left ? 1 : 0;
  }
  EXPECT_LT(equal, 200);
}

std::vector<float> sample(const std::vector<Transform>& transforms, const Image& picture, std::int64_t index) {
  const Compose compose(transforms, Precision::kExact);
  const SamplePlan plan = compose.draw(picture.size(), {4, 0, index});
  std::vector<float> out(Compose::shape_of(plan).bytes() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  compose.apply(plan, picture, out.data());
  return out;
}

TEST(TransformsOfFloats, MoveTheSamePixels) {
  const Image picture = test::make_picture(40, 30);
  const Normalize normalize{{0.4}, {0.2}};
  const std::vector<Transform> moves{RandomHorizontalFlip{}, RandomCrop{{20, 24}}, RandomVerticalFlip{}};
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sample({moves[0], moves[1], moves[2], ToTensor{}, normalize}, picture, i),
              sample({moves[0], moves[1], moves[2], ConvertImageDtype{}, normalize}, picture, i));
  }
  // The same streams: a transform that draws nothing takes the place of ToTensor.
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sample({ToTensor{}, normalize, moves[0], moves[1], moves[2]}, picture, i),
              sample({PILToTensor{}, PILToTensor{}, moves[0], moves[1], moves[2], ToTensor{}, normalize}, picture, i));
  }
}

TEST(TransformsOfFloats, AreNormalizedAsOftenAsAsked) {
  const Image picture = test::make_picture(40, 30);
  const Normalize first{{0.4, 0.5, 0.6}, {-0.2}};
  const Normalize second{{-1.0}, {0.3, 3.0, -0.5}};
  const RandomErasing erasing{.p = 1.0, .value = {5.0}};
  for (const std::vector<Transform>& transforms :
       std::vector<std::vector<Transform>>{{ToTensor{}, first}, {ToTensor{}, first, erasing}}) {
    std::vector<float> expected = sample(transforms, picture, 0);
    constexpr std::size_t kPlane = 40 * 30;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = (expected[i] + 1.0F) / std::array{0.3F, 3.0F, -0.5F}[i / kPlane];
    }
    std::vector<Transform> twice = transforms;
    twice.emplace_back(second);
    EXPECT_EQ(sample(twice, picture, 0), expected);
  }
}

// Blurred floats are those of the 8-bit blur before it rounds, in whatever order with Normalize and RandomErasing.
TEST(TransformsOfFloats, AreBlurred) {
  const Image picture = test::make_picture(40, 30);
  const GaussianBlur blur{{5, 3}, {1.5, 1.5}};
  const Normalize normalize{{0.4}, {0.2}};
  const std::vector<float> bytes = sample({blur, ToTensor{}}, picture, 0);
  const std::vector<float> floats = sample({ToTensor{}, blur}, picture, 0);
  const std::vector<float> normalized = sample({ToTensor{}, blur, normalize}, picture, 0);
  const std::vector<float> after = sample({ToTensor{}, normalize, blur}, picture, 0);
  int whole = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_NEAR(floats[i], bytes[i], 0.502 / 255);
    EXPECT_NEAR(normalized[i], (floats[i] - 0.4F) / 0.2F, 1e-5);
    EXPECT_NEAR(after[i], normalized[i], 1e-5);
    whole += floats[i] == bytes[i] ? 1 : 0;
  }
  EXPECT_LT(whole, static_cast<int>(bytes.size() / 10));
  const RandomErasing erasing{.p = 1.0, .scale = {0.3, 0.3}, .value = {5.0}};
  const std::vector<float> soft = sample({ToTensor{}, erasing, GaussianBlur{{5, 5}, {1.5, 1.5}}}, picture, 1);
  const auto between = [](float value) { return value > 1.5F && value < 4.5F; };
  EXPECT_GT(std::count_if(soft.begin(), soft.end(), between), 50);
}

// The noise of a large box does not repeat: neither from channel to channel nor within one.
TEST(TransformsOfFloats, AreErasedWithFreshNoise) {
  Image black(500, 500);
  std::memset(black.row(0), 0, black.row_bytes() * 500);
  const RandomErasing erasing{.p = 1.0, .scale = {0.6, 0.6}, .ratio = {1.0, 1.0}, .random = true};
  std::vector<float> noise = sample({ToTensor{}, erasing}, black, 0);
  std::erase(noise, 0.0F);
  ASSERT_EQ(noise.size(), 3U * 387 * 387);
  double sum = 0.0, squares = 0.0;
  for (const float value : noise) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(noise.size());
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1.0, 0.01);
  for (const std::size_t distance : {65'536U, 131'072U, 387U * 387, 2U}) {
    int equal = 0;
    for (std::size_t i = 0; i + distance < noise.size(); ++i) equal += noise[i] == noise[i + distance] ? 1 : 0;
    EXPECT_LT(equal, 100) << distance;
  }
}

std::string message(const std::vector<Transform>& transforms) {
  try {
    Compose compose(transforms);
  } catch (const DataError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(TransformErrors, NameTheParameter) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::vector<Transform>, std::string>> wrong{
      {{RandomPosterize{9}}, "transform 0 of Compose, RandomPosterize: expected 1 to 8 bits, found 9"},
      {{RandomPosterize{0}}, "found 0"},
      {{RandomRotation{.degrees = 5, .center = Point{kNan, 1.0}}}, "a finite center"},
      {{RandomAffine{.degrees = 5, .center = Point{1.0, kNan}}}, "a finite center"},
      {{ToTensor{}, RandomErasing{.value = {kNan}}}, "a finite value"},
      {{ToTensor{}, Normalize{{kNan}, {1.0}}}, "a finite mean"},
      {{ToTensor{}, Normalize{{1e39}, {1.0}}}, "a finite mean"},
      {{ToTensor{}, Normalize{{0.0}, {kNan}}}, "a std other than 0"},
      {{ToTensor{}, Normalize{{0.0}, {1e-320}}}, "a std other than 0, within the range of float32, found 1e-320"},
      {{Grayscale{1}, RandomRotation{.degrees = 5, .fill = Fill(1, 2, 3)}},
       "transform 1 of Compose, RandomRotation: expected one number as the fill of pictures with one channel, found "
       "(1, "
       "2, 3)"},
      {{Grayscale{1}, RandomApply{{Pad{2, Fill(1, 2, 3)}}}}, "transform 0 of RandomApply, Pad: expected one number"},
      {{RandomSolarize{kNan}}, "a number as threshold, found nan"},
      {{RandomAdjustSharpness{-0.1}}, "a sharpness_factor of at least 0, found -0.1"},
      {{RandomInvert{-0.5}}, "RandomInvert: expected a probability"},
      {{RandomEqualize{1.5}}, "RandomEqualize"},
      {{RandomAutocontrast{kNan}}, "RandomAutocontrast"},
      {{RandAugment{.magnitude = 31}}, "RandAugment: expected a magnitude from 0 to num_magnitude_bins - 1, found 31"},
      {{RandAugment{.num_ops = -1}}, "at least 0 num_ops"},
      {{TrivialAugmentWide{1}}, "at least 2 num_magnitude_bins"},
      {{RandomApply{{kInvert}, 1.1}}, "a probability p"},
      {{RandomChoice{}}, "RandomChoice: expected at least one transform, found none"},
      {{RandomChoice{{kInvert}, {0.5, 0.5}}}, "one number in p for each of 1 transforms, found 2"},
      {{RandomChoice{{kInvert, kInvert}, {0.0, 0.0}}}, "a positive number in p"},
      {{RandomChoice{{kInvert, kInvert}, {2.0, -1.0}}}, "no negative number in p, found -1"},
      {{kInvert, RandomApply{{kInvert, RandomOrder{{RandomPosterize{9}}}}}},
       "transform 1 of Compose, transform 1 of RandomApply, transform 0 of RandomOrder, RandomPosterize: expected"},
  };
  for (const auto& [transforms, expected] : wrong)
    EXPECT_NE(message(transforms).find(expected), std::string::npos) << message(transforms);
}

TEST(TransformErrors, NameTheOrder) {
  const Normalize normalize{{0.5}, {0.5}};
  const std::vector<std::pair<std::vector<Transform>, std::string>> wrong{
      {{RandomApply{{ToTensor{}}}}, "no change of a sample's type"},
      {{ToTensor{}, RandomApply{{normalize}}}, "transform 1 of Compose, transform 0 of RandomApply, Normalize"},
      {{RandomOrder{{Grayscale{1}}}}, "3 output channels in a list"},
      {{RandomApply{{RandomErasing{}}}}, "ToTensor before it"},
      {{ToTensor{}, RandomApply{{Resize{10}}}}, "pixels before ToTensor"},
      {{ToTensor{}, RandomCrop{.size = 10, .padding = Padding{2}}}, "pixels before ToTensor"},
      {{ToTensor{}, RandomErasing{}, RandomHorizontalFlip{}}, "crops and flips before RandomErasing"},
      {{ToTensor{}, RandomOrder{{RandomHorizontalFlip{}, RandomErasing{}}}}, "crops and flips before RandomErasing"},
      {{ConvertImageDtype{}, ToTensor{}}, "ToTensor once"},
  };
  for (const auto& [transforms, expected] : wrong)
    EXPECT_NE(message(transforms).find(expected), std::string::npos) << message(transforms);
  EXPECT_EQ(message({PILToTensor{}, RandomOrder{{kInvert, kEqualize}}, ConvertImageDtype{}, normalize,
                     RandomApply{{RandomErasing{}, GaussianBlur{3}}}}),
            "no error");
  EXPECT_EQ(message({ToTensor{}, ConvertImageDtype{}, RandomHorizontalFlip{}, normalize}), "no error");
  // The check of lists in lists takes no time that doubles with each of them.
  Transform deep = RandomErasing{};
  for (int i = 0; i < 60; ++i) deep = RandomOrder{{deep}};
  EXPECT_EQ(message({ToTensor{}, deep}), "no error");
  const std::vector<Transform> many(1 << 15, RandomApply{{kInvert}});
  EXPECT_EQ(message(many), "no error");
  EXPECT_NE(message({RandomApply{many}}).find("at most 65536 transforms"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::data
