// Drawn parameters have the distributions of torchvision. Both sides are seeded, so every run gives the same result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <sstream>

#include "support/python/python.h"
#include "transforms/distribution.h"
#include "transforms/step.h"

namespace lockstep::data {
namespace {

constexpr int kCount = 10'000;
using Numbers = std::map<std::string, std::vector<double>>;

void add_box(Numbers& numbers, const std::string& name, const Box& box) {
  numbers[name + "_top"].push_back(box.top);
  numbers[name + "_left"].push_back(box.left);
  numbers[name + "_height"].push_back(box.height);
  numbers[name + "_width"].push_back(box.width);
}

Box first_crop(const SamplePlan& plan) {
  for (const Step& step : plan->steps) {
    if (const auto* crop = std::get_if<CropStep>(&step)) return crop->box;
  }
  return {0, 0, plan->picture.width, plan->picture.height};
}

void add_jitter(Numbers& numbers, const SamplePlan& plan) {
  double order = 0;
  double place = 1;
  for (const Step& step : plan->steps) {
    int which = 0;
    if (const auto* s = std::get_if<BrightnessStep>(&step)) {
      numbers["jitter_brightness"].push_back(s->factor);
    } else if (const auto* c = std::get_if<ContrastStep>(&step)) {
      numbers["jitter_contrast"].push_back(c->factor);
      which = 1;
    } else if (const auto* t = std::get_if<SaturationStep>(&step)) {
      numbers["jitter_saturation"].push_back(t->factor);
      which = 2;
    } else {
      numbers["jitter_hue"].push_back(std::get<HueStep>(step).factor);
      which = 3;
    }
    order += which * place;
    place *= 4;
  }
  numbers["jitter_order"].push_back(order);
}

void add_rotation(Numbers& numbers, const SamplePlan& plan) {
  const AffineMatrix& matrix = std::get<WarpStep>(plan->steps.at(0)).matrix;
  numbers["rotation_angle"].push_back(-std::atan2(matrix[1], matrix[0]) * 180.0 / std::numbers::pi);
}

void add_affine(Numbers& numbers, const SamplePlan& plan) {
  const AffineMatrix& matrix = std::get<WarpStep>(plan->steps.at(0)).matrix;
  for (std::size_t i = 0; i < matrix.size(); ++i) numbers["affine_" + std::to_string(i)].push_back(matrix[i]);
}

Numbers drawn() {
  Numbers numbers;
  const Compose crop({RandomResizedCrop{10}});
  const Compose erase({ToTensor{}, RandomErasing{.p = 1.0}});
  const Compose jitter({ColorJitter{.brightness = 0.4, .contrast = 0.5, .saturation = 1.0, .hue = 0.1}});
  const Compose rotation({RandomRotation{{-10, 30}}});
  const Compose affine({RandomAffine{.degrees = {-20, 40},
                                     .translate = Point{0.1, 0.3},
                                     .scale = Interval01{0.7, 1.2},
                                     .shear = AngleRange{-5, 15},
                                     .shear_y = AngleRange{-8, 3}}});
  const Compose fixed_crop({RandomCrop{OutputSize{20, 17}}});
  const Compose blur({GaussianBlur{3}});
  for (std::int64_t i = 0; i < kCount; ++i) {
    add_box(numbers, "crop_wide", first_crop(crop.draw({500, 375}, {1, 0, i})));
    add_box(numbers, "crop_tall", first_crop(crop.draw({60, 200}, {1, 0, i})));
    const SamplePlan plan = erase.draw({48, 64}, {1, 0, i});
    // torchvision returns the whole picture when it finds no rectangle.
    add_box(numbers, "erase",
            plan->float_steps.empty() ? Box{0, 0, 48, 64} : std::get<EraseStep>(plan->float_steps.front()).box);
    add_jitter(numbers, jitter.draw({48, 64}, {1, 0, i}));
    add_rotation(numbers, rotation.draw({48, 64}, {1, 0, i}));
    add_affine(numbers, affine.draw({48, 64}, {1, 0, i}));
    const Box fixed = first_crop(fixed_crop.draw({48, 64}, {1, 0, i}));
    numbers["fixed_crop_top"].push_back(fixed.top);
    numbers["fixed_crop_left"].push_back(fixed.left);
    numbers["blur_sigma"].push_back(std::get<BlurStep>(blur.draw({48, 64}, {1, 0, i})->steps.at(0)).kernel.sigma);
  }
  return numbers;
}

TEST(DrawParity, ParametersAreDistributedAsTorchvisions) {
  std::istringstream lines(test::run_python("transform_parameters.py"));
  const Numbers ours = drawn();
  std::string line;
  std::size_t compared = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    const std::vector<double> theirs{std::istream_iterator<double>(fields), {}};
    ASSERT_EQ(theirs.size(), std::size_t{kCount}) << name;
    EXPECT_LT(test::distance(ours.at(name), theirs), test::distance_bound(kCount)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, ours.size());
}

TEST(DrawDistribution, FlipsAreAsLikelyAsAsked) {
  const Compose compose({RandomHorizontalFlip{0.3}, RandomVerticalFlip{0.8}});
  int across = 0;
  int down = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const SamplePlan plan = compose.draw({100, 100}, {4, 1, i});
    for (const Step& step : plan->steps) {
      ++(std::get<MirrorStep>(step).mirror.horizontal ? across : down);
    }
  }
  EXPECT_NEAR(static_cast<double>(across) / kCount, 0.3, 0.015);
  EXPECT_NEAR(static_cast<double>(down) / kCount, 0.8, 0.015);
}

}  // namespace
}  // namespace lockstep::data
