#include "lockstep/transforms/compose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "image/encoders.h"
#include "lockstep/data/errors.h"
#include "transforms/step.h"

namespace lockstep::data {
namespace {

const Normalize kNormalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};

std::vector<Transform> reference_transforms() {
  return {RandomResizedCrop{64},
          RandomHorizontalFlip{},
          RandomVerticalFlip{},
          RandomRotation{45},
          RandomAffine{45},
          ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
          ToTensor{},
          kNormalize};
}

std::vector<Transform> every_other_transform() {
  return {RandomInvert{},       RandomPosterize{3}, RandomSolarize{100}, RandomAdjustSharpness{4.0, 1.0},
          RandomAutocontrast{}, RandomEqualize{},   RandAugment{},       TrivialAugmentWide{}};
}

std::vector<float> sample(const Compose& compose, std::span<const std::uint8_t> bytes, const SampleKey& key) {
  const SamplePlan plan = compose.draw(image_size(bytes).value(), key);
  std::vector<float> out(Compose::shape_of(plan).bytes() / sizeof(float));
  compose.apply(plan, bytes, {}, out.data());
  return out;
}

TEST(Philox, IsThePublishedFunction) {
  // Known answers from the authors' library Random123.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Compose, SamplesDependOnTheirKeyAlone) {
  const std::vector<std::uint8_t> bytes = test::encode_jpeg(test::make_picture(200, 150));
  for (const Precision precision : {Precision::kFast, Precision::kExact}) {
    const Compose compose(reference_transforms(), precision);
    const std::vector<float> first = sample(compose, bytes, {7, 3, 11});
    sample(compose, bytes, {7, 3, 12});
    EXPECT_EQ(sample(compose, bytes, {7, 3, 11}), first);
    std::vector<float> elsewhere;
    std::thread([&] { elsewhere = sample(compose, bytes, {7, 3, 11}); }).join();
    EXPECT_EQ(elsewhere, first);
    for (const SampleKey& other : {SampleKey{8, 3, 11}, SampleKey{7, 4, 11}, SampleKey{7, 3, 12}}) {
      EXPECT_NE(sample(compose, bytes, other), first);
    }
  }
}

// Optimizations such as decoding only the crop, or mirroring during conversion, do not change the bits of exact mode.
TEST(Compose, ExactModeGivesTheBitsOfTheWholePictureStepByStep) {
  const std::vector<std::uint8_t> bytes = test::encode_jpeg(test::make_picture(211, 163));
  const Image whole = decode_image(bytes).value();
  const Compose compose(reference_transforms(), Precision::kExact);
  for (std::int64_t index = 0; index < 40; ++index) {
    const std::vector<float> ours = sample(compose, bytes, {1, 0, index});
    const SamplePlan plan = compose.draw(whole.size(), {1, 0, index});
    std::vector<float> slow(ours.size());
    compose.apply(plan, whole, slow.data());
    ASSERT_EQ(ours, slow) << index;
  }
}

// The numbers of docs/data.md for fast mode, in grey levels, on a picture with noise and hard edges.
TEST(Compose, FastModeStaysClose) {
  std::vector<std::uint8_t> bytes = test::encode_jpeg(test::make_picture(500, 375));
  const auto mean_difference = [&](std::vector<Transform> transforms) {
    transforms.emplace_back(ToTensor{});
    double sum = 0.0;
    for (std::int64_t index = 0; index < 16; ++index) {
      const std::vector<float> fast = sample(Compose(transforms), bytes, {2, 0, index});
      const std::vector<float> exact = sample(Compose(transforms, Precision::kExact), bytes, {2, 0, index});
      double total = 0.0;
      for (std::size_t i = 0; i < fast.size(); ++i) total += std::abs(fast[i] - exact[i]) * 255.0;
      sum += total / static_cast<double>(fast.size());
    }
    return sum / 16;
  };
  constexpr double kSame = 0.001;  // but for the rounding of floats
  EXPECT_LT(mean_difference({RandomResizedCrop{224}, RandomHorizontalFlip{}}), kSame);
  EXPECT_LT(mean_difference({RandomResizedCrop{48}, RandomHorizontalFlip{}}), 0.5);  // mostly decoded at a smaller size
  EXPECT_LT(mean_difference({RandomResizedCrop{224}, RandomRotation{{-45, 45}, Interpolation::kBilinear}}), 1.0);
  // Two nearest-neighbour steps in exact mode, one in fast mode: shifts by up to a pixel.
  EXPECT_LT(mean_difference({RandomResizedCrop{224}, RandomRotation{45}, RandomAffine{45}}), 8.0);
  // libjpeg-turbo's fast inverse transform turns black to white at such a quality.
  Image sharp(30, 30);
  for (int y = 0; y < 30; ++y) {
    for (int x = 0; x < 30; ++x) std::memset(sharp.row(y) + std::ptrdiff_t{4} * x, (x * y + x) % 3 == 0 ? 255 : 0, 4);
  }
  for (const int components : {1, 3}) {
    bytes = test::encode_jpeg(sharp, {.quality = 100, .components = components});
    EXPECT_LT(mean_difference({RandomHorizontalFlip{}}), kSame);
  }
}

// Fused transforms have `fill` at the same places as separate ones.
TEST(Compose, FusedTransformsFillTheSameCorners) {
  Image white(80, 60);
  std::memset(white.row(0), 255, white.row_bytes() * 60);
  const std::vector<Transform> transforms{RandomRotation{45}, RandomHorizontalFlip{1.0},
                                          RandomAffine{.degrees = 45, .scale = Interval01{0.6, 1.4}}};
  for (std::int64_t index = 0; index < 50; ++index) {
    std::vector<std::uint8_t> fast(80 * 60 * 3);
    std::vector<std::uint8_t> exact(fast.size());
    const Compose fused(transforms);
    const Compose sequence(transforms, Precision::kExact);
    fused.apply(fused.draw({80, 60}, {5, 0, index}), white, fast.data());
    sequence.apply(sequence.draw({80, 60}, {5, 0, index}), white, exact.data());
    int different = 0;
    for (std::size_t i = 0; i < 80 * 60; ++i) different += fast[i] != exact[i] ? 1 : 0;
    EXPECT_LT(different, 260) << index;  // of 4,800: only along the edges
  }
}

// Positions that do not fit fixed point are outside of the picture: they do not wrap into it.
TEST(Compose, ExtremeScalesStayInside) {
  const Image picture = test::make_picture(50, 40);
  std::vector<std::uint8_t> out(50 * 40 * 3);
  for (const double scale : {1e-300, 1e-9, 1e-5, 1e-3, 1e3, 1e9, 1e300}) {
    for (const Precision precision : {Precision::kFast, Precision::kExact}) {
      for (const Interpolation interpolation : {Interpolation::kNearest, Interpolation::kBilinear}) {
        const RandomAffine once{.degrees = 45, .scale = Interval01{scale, scale}, .interpolation = interpolation};
        const Compose compose({once, once}, precision);
        for (std::int64_t index = 0; index < 8; ++index) {
          compose.apply(compose.draw(picture.size(), {6, 0, index}), picture, out.data());
        }
      }
    }
  }
}

// Pictures of one pixel, row or column, through all transforms that read neighbours or divide by a side.
TEST(Compose, TheSmallestPicturesGoThroughAllTransforms) {
  std::vector<Transform> transforms{GaussianBlur{3}, RandomRotation{.degrees = 45, .expand = true}};
  const std::vector<Transform> first = every_other_transform();
  transforms.insert(transforms.end(), first.begin(), first.end());
  for (const Transform& transform : reference_transforms()) {
    if (std::holds_alternative<ToTensor>(transform)) {
      transforms.insert(transforms.end(), {Pad{2, 9, PaddingMode::kReflect}, GaussianBlur{5}, RandomGrayscale{}});
      const std::vector<Transform> more = every_other_transform();
      transforms.insert(transforms.end(), more.begin(), more.end());
    }
    transforms.push_back(transform);
  }
  transforms.emplace_back(RandomErasing{});
  for (const ImageSize& size : {ImageSize{1, 1}, ImageSize{1, 9}, ImageSize{9, 1}, ImageSize{2, 2}}) {
    const std::vector<std::uint8_t> bytes = test::encode_jpeg(test::make_picture(size.width, size.height));
    for (const Precision precision : {Precision::kFast, Precision::kExact}) {
      const Compose compose(transforms, precision);
      for (std::int64_t index = 0; index < 40; ++index) {
        for (const float value : sample(compose, bytes, {3, 0, index})) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(Compose, AResizedRowDoesNotTakeAllMemory) {
  const Compose compose({Resize{224}});
  EXPECT_EQ(Compose::shape_of(compose.draw({20'000, 20}, {})), (SampleShape{3, 224, 224'000, false}));
  EXPECT_THROW(compose.draw({1, 20'000}, {}), DataError);
  EXPECT_THROW(Compose({Resize{65'536}}).draw({1, 1 << 20}, {}), DataError);
}

TEST(Compose, ShapesFollowTheTransforms) {
  const auto shape = [](std::vector<Transform> transforms, ImageSize size = {200, 100}) {
    const Compose compose(std::move(transforms));
    return Compose::shape_of(compose.draw(size, {}));
  };
  EXPECT_EQ(shape({}), (SampleShape{3, 100, 200, false}));
  EXPECT_EQ(shape({Resize{50}, ToTensor{}}), (SampleShape{3, 50, 100, true}));
  EXPECT_EQ(shape({Resize{.size = 50, .max_size = 80}}), (SampleShape{3, 40, 80, false}));
  EXPECT_EQ(shape({Resize{OutputSize{7, 9}}, Grayscale{}}), (SampleShape{1, 7, 9, false}));
  EXPECT_EQ(shape({CenterCrop{224}}), (SampleShape{3, 224, 224, false}));
  EXPECT_EQ(shape({RandomCrop{.size = {40, 30}, .padding = Padding{4}}}), (SampleShape{3, 40, 30, false}));
  EXPECT_EQ(shape({Pad{{1, 2, 3, 4}}}), (SampleShape{3, 106, 204, false}));
  EXPECT_THROW(shape({RandomCrop{300}}), DataError);
  EXPECT_EQ(shape({RandomCrop{.size = 300, .pad_if_needed = true}}), (SampleShape{3, 300, 300, false}));
}

TEST(Compose, WrongTransformsAreNamed) {
  const auto message = [](std::vector<Transform> transforms) -> std::string {
    try {
      Compose compose(std::move(transforms));
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({kNormalize}).find("transform 0 of Compose, Normalize: expected ToTensor before it"),
            std::string::npos);
  EXPECT_NE(message({ToTensor{}, ColorJitter{}}).find("transform 1"), std::string::npos);
  EXPECT_NE(message({RandomHorizontalFlip{1.5}}).find("1.5"), std::string::npos);
  EXPECT_NE(message({RandomResizedCrop{.size = 10, .scale = {0.9, 0.1}}}).find("scale"), std::string::npos);
  EXPECT_NE(message({GaussianBlur{4}}).find("odd"), std::string::npos);
  EXPECT_NE(message({Resize{0}}).find("Resize"), std::string::npos);
  EXPECT_NE(message({ToTensor{}, Normalize{{0.5}, {0.0}}}).find("std other than 0"), std::string::npos);
  EXPECT_NE(message({ColorJitter{.hue = 0.7}}).find("hue"), std::string::npos);
  EXPECT_NE(message({Pad{1 << 30}}).find("transform 0 of Compose, Pad: expected padding from -65536 to 65536"),
            std::string::npos);
  EXPECT_NE(message({GaussianBlur{(1 << 30) + 1}}).find("an odd kernel size up to"), std::string::npos);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_NE(message({RandomResizedCrop{.size = 10, .scale = {1.0, kInfinity}}}).find("scale"), std::string::npos);
  EXPECT_NE(message({ColorJitter{.contrast = kInfinity}}).find("contrast"), std::string::npos);
  // The number of values must be that of the channels.
  EXPECT_NE(message({Grayscale{}, ToTensor{}, kNormalize}).find("one for each of 1 channels, found 3"),
            std::string::npos);
  EXPECT_NE(message({Grayscale{}, ToTensor{}, RandomErasing{.value = {1, 2, 3}}}).find("RandomErasing"),
            std::string::npos);
  EXPECT_EQ(message({Grayscale{3}, ToTensor{}, kNormalize}), "");
  EXPECT_TRUE(Compose({}).transforms().empty());
  EXPECT_EQ(Compose({}, Precision::kExact).precision(), Precision::kExact);
  EXPECT_EQ(message(reference_transforms()), "");
}

TEST(Compose, YourOwnTransformSeesPixelsAndItsOwnNumbers) {
  const Lambda invert{[](Image& image, CounterRandom& random) {
    const auto level = static_cast<std::uint8_t>(random.below(256));
    for (std::ptrdiff_t x = 0; x < image.width(); ++x) image.row(0)[4 * x] = level;
  }};
  const Compose compose({invert});
  const Image picture = test::make_picture(8, 4);
  std::vector<std::uint8_t> out(8 * 4 * 3);
  compose.apply(compose.draw(picture.size(), {1, 2, 3}), picture, out.data());
  CounterRandom random({1, 2, 3}, 0);
  EXPECT_EQ(out[5], random.below(256));
  EXPECT_EQ(out[8], picture.pixel(0, 1)[0]);
}

TEST(Compose, YourOwnTransformMayRunAnotherCompose) {
  const Image picture = test::make_picture(40, 30);
  const Compose inner({Resize{OutputSize{50, 70}}, RandomRotation{{30, 30}}, RandomInvert{1.0}});
  const auto run_inner = [&] {
    std::vector<std::uint8_t> out(50 * 70 * 3);
    inner.apply(inner.draw(picture.size(), {}), picture, out.data());
    return out;
  };
  const std::vector<std::uint8_t> expected = run_inner();
  const auto run_outer = [&](bool nested) {
    const Lambda own{[&](Image& /*image*/, CounterRandom& /*random*/) {
      if (nested) {
        EXPECT_EQ(run_inner(), expected);
      }
    }};
    const Compose outer({RandomCrop{20}, RandomPosterize{4, 1.0}, own, RandomInvert{1.0}, own, Resize{15}});
    std::vector<std::uint8_t> out(15 * 15 * 3);
    outer.apply(outer.draw(picture.size(), {1, 2, 3}), picture, out.data());
    return out;
  };
  EXPECT_EQ(run_outer(true), run_outer(false));
}

TEST(Compose, BytesThatCannotBeDecodedThrowTheDecodersError) {
  std::vector<std::uint8_t> bytes = test::encode_jpeg(test::make_picture(40, 30));
  bytes.resize(bytes.size() / 2);
  const Compose compose({ToTensor{}});
  std::vector<float> out(40 * 30 * 3);
  for (const ImageSize& size : {ImageSize{40, 30}, ImageSize{30, 40}}) {
    try {
      compose.apply(compose.draw(size, {}), bytes, {}, out.data());
      ADD_FAILURE() << "expected an error";
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
  }
}

TEST(Compose, ASampleIsNeverLargerThanItsPlace) {
  const Image picture = test::make_picture(8, 4);
  std::vector<std::uint8_t> out(8 * 4 * 3);
  const Compose growing({Lambda{[](Image& image, CounterRandom& /*unused*/) { image = test::make_picture(9, 4); }}});
  EXPECT_THROW(growing.apply(growing.draw(picture.size(), {}), picture, out.data()), DataError);
  const Compose nothing;
  EXPECT_THROW(nothing.apply(nothing.draw({8, 4}, {}), test::make_picture(8, 5), out.data()), DataError);
}

// A long and thin picture that a transform would make huge.
TEST(Compose, NoTransformGrowsBeyondAllMemory) {
  const ImageSize thin{1 << 20, 1};
  for (const std::vector<Transform>& transforms :
       std::vector<std::vector<Transform>>{{RandomRotation{.degrees = {45, 45}, .expand = true}},
                                           {Pad{65'536}},
                                           {RandomCrop{.size = 10, .padding = Padding{65'536}}},
                                           {Pad{{0, 60'000, 0, 60'000}}, Pad{{0, 60'000, 0, 60'000}}},
                                           {CenterCrop{65'536}}}) {
    EXPECT_THROW(Compose(transforms).draw(thin, {}), DataError);
  }
  EXPECT_EQ(Compose::shape_of(Compose().draw({1 << 20, 1 << 10}, {})), (SampleShape{3, 1 << 10, 1 << 20, false}));
}

TEST(Compose, RandomErasingOverwritesBeforeOrAfterNormalizing) {
  const Image picture = test::make_picture(40, 40);
  const RandomErasing erasing{.p = 1.0, .scale = {0.2, 0.3}, .value = {0.5}};
  for (const bool before : {false, true}) {
    const Compose compose(before ? std::vector<Transform>{ToTensor{}, erasing, kNormalize}
                                 : std::vector<Transform>{ToTensor{}, kNormalize, erasing});
    std::vector<float> out(40 * 40 * 3);
    compose.apply(compose.draw(picture.size(), {1, 0, 0}), picture, out.data());
    const float expected = before ? (0.5F - 0.485F) / 0.229F : 0.5F;
    const auto erased = std::count(out.begin(), out.begin() + 1600, expected);
    EXPECT_GT(erased, 200);
    EXPECT_LT(erased, 600);
  }
}

// Appends the results of the kernels that sample, sum and smooth.
void run_sampling_kernels(const ImageKernels& kernels, const Image& picture, std::vector<std::uint8_t>& bytes) {
  constexpr int kCount = 61;
  const auto append = [&](const void* from, std::size_t count) {
    const auto* begin = static_cast<const std::uint8_t*>(from);
    bytes.insert(bytes.end(), begin, begin + count);
  };
  double x[kCount], y[kCount];
  const double matrix[6] = {1.7, 0.02, -3.0, 0.01, 0.04, 0.2};
  kernels.project(matrix, 2, kCount, x, y);
  append(x, sizeof(x));
  append(y, sizeof(y));
  std::vector<std::uint8_t> row(4 * 101 + 64);
  const auto stride = static_cast<std::int64_t>(picture.row_bytes());
  kernels.sample_bilinear({picture.row(0), stride, 101, 3, x, y, kCount, {1, 2, 3, 255}}, row.data());
  append(row.data(), 4 * kCount);
  kernels.smooth(picture.row(0) + 4, picture.row(1) + 4, picture.row(2) + 4, 4 * 99, row.data());
  append(row.data(), 4 * 99);
  std::vector<float> sums(4 * 101 + 64, 0.5F);
  for (std::size_t i = 0; i < 403; ++i) sums[i] += 0.37F * static_cast<float>(picture.row(1)[i]);
  const float* rows[3] = {sums.data(), sums.data() + 4, sums.data() + 8};
  const float weights[3] = {0.2F, 0.5F, 0.3F};
  std::vector<float> blurred(4 * 101 + 64, 0.0F);
  kernels.weighted_sum(rows, weights, 3, 395, blurred.data());
  append(blurred.data(), 395 * sizeof(float));
  kernels.to_bytes(blurred.data(), 395, row.data());
  append(row.data(), 395);
  std::uint8_t low[4] = {255, 255, 255, 255};
  std::uint8_t high[4] = {};
  kernels.extremes(picture.row(0), 101, low, high);
  append(low, 3);
  append(high, 3);
}

// Every kernel gives the same bits.
TEST(ImageKernels, AgreeOnEveryInstructionSet) {
  const ImageKernels* list[3];
  const int count = supported_image_kernels(list);
  const Image picture = test::make_picture(101, 3);
  Weights weights;
  compute_weights(101, {0, 101}, 37, Interpolation::kBicubic, weights);
  PairedWeights paired;
  const HorizontalResampling& plan = paired.arrange(weights);
  ToFloat how;
  for (int c = 0; c < 3; ++c) how.deviation[c] = 0.23F;
  std::vector<std::vector<std::uint8_t>> results;
  for (int i = 0; i < count; ++i) {
    std::vector<std::uint8_t> bytes(4096, 0);
    list[i]->resample_row(plan, picture.row(0), bytes.data());
    const std::uint8_t* rows[3] = {picture.row(0), picture.row(1), picture.row(2)};
    const std::int32_t column[3] = {1 << 20, 3 << 20, -(1 << 18)};
    list[i]->resample_column(rows, column, 3, 404, bytes.data() + 256);
    std::memset(bytes.data() + 256 + 404, 0, 64);
    list[i]->to_grey(picture.row(0), 101, bytes.data() + 1024);
    list[i]->blend(picture.row(0), picture.row(1), 1.7F, true, 404, bytes.data() + 1536);
    list[i]->gather_bilinear(
        {picture.row(0), static_cast<std::int64_t>(picture.row_bytes()), 70000, 9000, 91000, 400, 60},
        bytes.data() + 2048);
    std::vector<float> floats(303);
    float* const planes[3] = {floats.data(), floats.data() + 101, floats.data() + 202};
    list[i]->to_float(how, picture.row(0), 101, 3, true, planes);
    std::memcpy(bytes.data() + 2560, floats.data(), 303 * sizeof(float));
    run_sampling_kernels(*list[i], picture, bytes);
    results.push_back(std::move(bytes));
    EXPECT_EQ(results.back(), results.front()) << list[i]->name;
  }
}

}  // namespace
}  // namespace lockstep::data
