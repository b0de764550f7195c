// Texts of transforms: those that torchvision takes, and its own texts of them, are taken; those that it refuses are
// refused.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/data/errors.h"
#include "lockstep/transforms/compose.h"
#include "lockstep/transforms/parse.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

// Programs that torchvision evaluates on a colour picture.
const std::vector<std::string> kTexts{
    "Resize(8, antialias=True)",
    "Resize([8], InterpolationMode.NEAREST_EXACT, None, True)",
    "v2.Resize((8, 9), interpolation='bicubic', antialias=False)",
    "Resize(8, 2)",
    "RandomResizedCrop(8, (1/2, 1.0), ratio=(3/4, 4/3), antialias=None)",
    "RandomResizedCrop(8, (0.5, 1), (3. / 4., 4. / 3.), InterpolationMode.BICUBIC, True)",
    "RandomResizedCrop(8, scale=0.5)",
    "RandomResizedCrop(8, ratio=(4/3))",
    "RandomAffine(10, scale=0.5)",
    "Compose([ToTensor(), RandomErasing(1, (0.1, 0.2), 3.3)])",
    "RandomCrop(8, None, False, 0, 'constant')",
    "RandomCrop(8, padding=2, fill=None)",
    "v2.Pad(2, fill=None)",
    "Pad((1, 2, 3, 4), (5, 6, 7), 'edge')",
    "Pad(2, fill=[7])",
    "CenterCrop([8])",
    "RandomHorizontalFlip(p=1/2)",
    "RandomRotation(30, InterpolationMode.NEAREST_EXACT, False, None, None)",
    "RandomRotation([-30, 30], 2)",
    "RandomAffine(10, None, None, None, InterpolationMode.BILINEAR, None, None)",
    "RandomAffine((-10, 10), (1/10, 1/5), (0.9, 1.1), (1, 2, 3, 4), fill=(1, 2, 3), center=(3, 4))",
    "v2.ColorJitter(brightness=None, contrast=0.4, saturation=(0.5, 1.5), hue=None)",
    "Grayscale(num_output_channels=3)",
    "GaussianBlur((3, 5), sigma=1.5)",
    "RandomPosterize(0, 1)",
    "RandomPosterize(1, 1)",
    "RandomPosterize(9, 1)",
    "RandomSolarize(threshold=192.0, p=1)",
    "RandomSolarize(256, 1)",
    "RandomSolarize(-1, 1)",
    "Pad(-11)",
    "Pad(-13)",
    "Pad((-30, 0, 30, 0), 7)",
    "Pad((-30, 0, 30, 0), 7, 'edge')",
    "Compose()",
    "RandAugment(2, 9, 31, InterpolationMode.BILINEAR, [1, 2, 3])",
    "TrivialAugmentWide(fill=None)",
    "Compose([ToTensor(), Normalize([0.5], [0.5], True)])",
    "Compose([ToTensor(), Normalize(mean=0.5, std=0.5, inplace=False)])",
    "Compose([ToTensor(), Normalize((0.5,) * 3, [1/4]*3)])",
    "Compose([ToTensor(), Normalize(3 * [1e-3], (-0.5,))])",
    "Compose([ToTensor(), Normalize((0.5), +1), Normalize([0.1, 0.2, 0.3], [1, 2, 3])])",
    "Compose([ToTensor(), Normalize([0.5], [1e-320])])",
    "Compose([ToTensor(), Normalize([0.5], [0.0])])",
    "Compose([ToTensor(), RandomErasing(1, (0.1, 0.2), (0.5, 2), 'random', True)])",
    "Compose([ToTensor(), RandomErasing(p=1, value='noise')])",
    "Compose([ToTensor(), RandomErasing(p=1, value=[1, 2])])",
    "Compose([ToTensor(), RandomErasing(1, (0.02, 0.33), (0.3, 3.3), 0, True)])",
    "Compose([PILToTensor(), ConvertImageDtype(torch.float)])",
    "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])",
    "v2.Compose([v2.ToImage(), v2.ToDtype(dtype=torch.uint8, scale=True), v2.Resize(8, antialias=True)])",
    "Compose([Compose([Resize(8), Compose([CenterCrop(4), ToTensor()])]), Normalize([0.5], [0.5])])",
    "RandomApply(transforms=[Compose([Pad(1), Pad(2)]), Pad(3)], p=1)",
    "RandomChoice([Compose([Pad(1), Pad(2)]), RandomOrder([Pad(3)])], p=None)",
    "RandomChoice([Pad(1)], p=[2])",
    "RandomApply([], p=1)",
    "RandomOrder([])",
    "RandomChoice([])",
    "Compose([Grayscale(1), Pad(2, 5)])",
    "Compose([Grayscale(1), Pad(2, (1, 2, 3))])",
    "Compose([Grayscale(1), RandomCrop(8, 2, fill=(1, 2, 3))])",
    "Compose([Grayscale(1), RandomRotation((20, 30), fill=(1, 2, 3))])",
    "Compose([Grayscale(1), RandomAffine((20, 30), fill=(1, 2, 3))])",
};

std::string refusal_of(const std::string& text) {
  const auto transforms = parse_transforms({text});
  if (!transforms.ok()) return transforms.status().message();
  try {
    const Compose compose(transforms.value());
    compose.draw({24, 24}, {1, 2, 3});
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(TransformTextsParity, AreTakenAndRefusedAsByTorchvision) {
  const test::ScratchFolder scratch;
  nlohmann::json asked(kTexts);
  std::ofstream(scratch.path("texts.json")) << asked;
  const auto answers = nlohmann::json::parse(test::run_python("transform_texts.py", {scratch.path("texts.json")}));
  int refused = 0;
  for (const std::string& text : kTexts) {
    const std::string judge = answers.at("refusals").at(text);
    EXPECT_EQ(refusal_of(text).empty(), judge.empty())
        << text << "\ntorchvision: " << judge << "\nhere: " << refusal_of(text);
    refused += judge.empty() ? 0 : 1;
  }
  EXPECT_EQ(refused, 18);
  // What print() shows of a transform: of each in both of torchvision's packages.
  EXPECT_GT(answers.at("shown").size(), 50U);
  for (const std::string text : answers.at("shown")) EXPECT_EQ(refusal_of(text), "") << text;
}

}  // namespace
}  // namespace lockstep::data
