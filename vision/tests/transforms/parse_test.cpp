// Transforms as text.
#include "lockstep/transforms/parse.h"

#include <gtest/gtest.h>

#include <set>

#include "transforms/kind.h"

namespace lockstep::data {
namespace {

template <typename T>
T one(const std::string& text) {
  const auto transforms = parse_transforms({text});
  EXPECT_TRUE(transforms.ok()) << transforms.status().message();
  if (!transforms.ok() || !std::holds_alternative<T>(transforms.value().at(0))) throw std::runtime_error(text);
  return std::get<T>(transforms.value()[0]);
}

TEST(ParseTransforms, ReadsPythonsNotation) {
  const auto crop = one<RandomResizedCrop>(" RandomResizedCrop(224, scale=(0.2, 1), interpolation='bicubic') ");
  EXPECT_EQ(crop.size.height, 224);
  EXPECT_DOUBLE_EQ(crop.scale.low, 0.2);
  EXPECT_DOUBLE_EQ(crop.ratio.high, 4.0 / 3.0);
  EXPECT_EQ(crop.interpolation, Interpolation::kBicubic);
  EXPECT_EQ(one<CenterCrop>("transforms.CenterCrop((3, 5))").size.width, 5);
  EXPECT_EQ(std::get<int>(one<Resize>("Resize(256, InterpolationMode.BILINEAR, 512)").size), 256);
  EXPECT_EQ(std::get<OutputSize>(one<Resize>("Resize([2, 4])").size).width, 4);
  EXPECT_EQ(one<RandomHorizontalFlip>("RandomHorizontalFlip").p, 0.5);
  EXPECT_EQ(one<RandomHorizontalFlip>("RandomHorizontalFlip(p=1)").p, 1.0);
  EXPECT_EQ(one<RandomRotation>("RandomRotation(15, fill=(1, 2, 3))").fill, Fill(1, 2, 3));
  const auto affine = one<RandomAffine>("RandomAffine(degrees=0, translate=(0.1, 0.2), shear=[-1, 1, -2, 2])");
  EXPECT_EQ(affine.translate->y, 0.2);
  EXPECT_EQ(affine.shear_y->high, 2.0);
  EXPECT_EQ(*one<ColorJitter>("ColorJitter(0.4, hue=0.1)").brightness.amount, 0.4);
  EXPECT_EQ(one<ColorJitter>("ColorJitter((0.5, 2))").brightness.high, 2.0);
  EXPECT_EQ(one<RandomCrop>("RandomCrop(32, padding=None)").padding.has_value(), false);
  EXPECT_EQ(one<RandomCrop>("RandomCrop(32, padding=4, padding_mode='reflect')").padding->bottom, 4);
  EXPECT_EQ(one<Normalize>("Normalize(mean=[0.5], std=[0.25])").std, std::vector<double>{0.25});
  EXPECT_EQ(one<Normalize>("Normalize((0.5,) * 3, [1/4]*3)").std, (std::vector<double>{0.25, 0.25, 0.25}));
  EXPECT_EQ(one<Resize>("Resize(8, InterpolationMode.NEAREST_EXACT, antialias=True)").interpolation,
            Interpolation::kNearest);
  EXPECT_EQ(one<Resize>("Resize(8, 1)").interpolation, Interpolation::kLanczos);  // PIL's number
  EXPECT_DOUBLE_EQ(one<RandomResizedCrop>("RandomResizedCrop(8, ratio=(3/4, 4. / 3.))").ratio.high, 4.0 / 3.0);
  EXPECT_TRUE(one<RandomErasing>("RandomErasing(1, (0.1, 0.2), (1, 2), value='random')").random);
  const auto erasing = one<RandomErasing>("RandomErasing(1, (0.1, 0.2), (1, 2), (1, 2, 3), True)");
  EXPECT_FALSE(erasing.random);
  EXPECT_EQ(erasing.value, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(one<RandomRotation>("RandomRotation(15, fill=None)").fill, Fill());
  EXPECT_EQ(*one<ColorJitter>("ColorJitter(brightness=None)").brightness.amount, 0.0);
  one<ConvertImageDtype>("ConvertImageDtype(torch.float)");
  one<ConvertImageDtype>("v2.ToDtype(torch.float32, scale=True)");
  one<PILToTensor>("v2.ToDtype(torch.uint8)");
  one<PILToTensor>("v2.ToImage()");
  EXPECT_EQ(one<RandomHorizontalFlip>("RandomHorizontalFlip(p=(.5))").p, 0.5);
  EXPECT_EQ(one<Normalize>("Normalize(3 * [1e-3], (-0.5,))").mean, (std::vector<double>{1e-3, 1e-3, 1e-3}));
  EXPECT_EQ(one<Normalize>("Normalize(3 * [1e-3], (-0.5,))").std, std::vector<double>{-0.5});
  EXPECT_EQ(one<Normalize>("Normalize((0.5), +1)").mean, std::vector<double>{0.5});
  const auto apply = one<RandomApply>("RandomApply([ColorJitter(0.1), RandomChoice([RandomInvert()])], p=0.3)");
  ASSERT_EQ(apply.transforms.size(), 2U);
  EXPECT_EQ(std::get<RandomChoice>(apply.transforms[1]).transforms.size(), 1U);
}

TEST(ParseTransforms, AComposeIsItsTransformsOrOneTransformOfAList) {
  auto flat = parse_transforms(
      {"Resize(9)",
       "transforms.Compose([CenterCrop(8), Compose([ToTensor()]), RandomChoice([Compose([Pad(1), Pad(2)])])])"});
  ASSERT_TRUE(flat.ok()) << flat.status().message();
  ASSERT_EQ(flat->size(), 4U);
  EXPECT_TRUE(std::holds_alternative<ToTensor>(flat->at(2)));
  const auto& choice = std::get<RandomChoice>(flat->at(3)).transforms;
  ASSERT_EQ(choice.size(), 1U);
  EXPECT_EQ(std::get<RandomApply>(choice[0]).p, 1.0);
  EXPECT_EQ(std::get<RandomApply>(choice[0]).transforms.size(), 2U);
}

// A new transform needs a line here.
TEST(ParseTransforms, KnowsEachTransformByItsName) {
  std::set<std::size_t> left;  // places in the variant
  for (std::size_t place = 0; place < std::variant_size_v<Transform::variant>; ++place) left.insert(place);
  for (const std::string text : {"Resize(1)",
                                 "CenterCrop(1)",
                                 "RandomResizedCrop(1)",
                                 "RandomCrop(1)",
                                 "Pad(1)",
                                 "RandomHorizontalFlip()",
                                 "RandomVerticalFlip()",
                                 "RandomRotation(1)",
                                 "RandomAffine(1)",
                                 "ColorJitter()",
                                 "Grayscale()",
                                 "RandomGrayscale()",
                                 "GaussianBlur(3)",
                                 "RandomInvert()",
                                 "RandomPosterize(1)",
                                 "RandomSolarize(1)",
                                 "RandomAdjustSharpness(1)",
                                 "RandomAutocontrast()",
                                 "RandomEqualize()",
                                 "RandAugment()",
                                 "TrivialAugmentWide()",
                                 "ToTensor()",
                                 "ConvertImageDtype()",
                                 "PILToTensor()",
                                 "Normalize([0], [1])",
                                 "RandomErasing()",
                                 "RandomApply([RandomInvert()])",
                                 "RandomChoice([RandomInvert()])",
                                 "RandomOrder([RandomInvert()])"}) {
    const auto transforms = parse_transforms({text});
    ASSERT_TRUE(transforms.ok()) << transforms.status().message();
    const Transform& transform = transforms.value().at(0);
    EXPECT_EQ(kind_of(transform).name, text.substr(0, text.find('(')));
    left.erase(transform.index());
  }
  const Transform lambda = Lambda{};  // has no text
  EXPECT_EQ(kind_of(lambda).name, "Lambda");
  left.erase(lambda.index());
  EXPECT_EQ(left, std::set<std::size_t>{});
}

struct Wrong {
  std::string text;
  std::vector<std::string> parts;
};

TEST(ParseTransforms, SaysWhatIsWrong) {
  for (const auto& [text, parts] : std::vector<Wrong>{
           {"RandomHorizontalFlips", {"no transform", "RandomHorizontalFlip"}},
           {"Lambda(f)", {"no transform 'Lambda'"}},
           {"Normalize([0.5]*3*3, [1])", {"expected ',' or ')'", "found '*'"}},
           {"RandomRotation(degree=5)", {"RandomRotation", "no parameter 'degree'", "degrees, interpolation"}},
           {"CenterCrop", {"'size' is missing"}},
           {"CenterCrop(1, 2)", {"too many"}},
           {"CenterCrop(2.5)", {"size", "whole number", "2.5"}},
           {"CenterCrop(2, size=2)", {"'size' is there twice"}},
           {"Pad((1, 2, 3))", {"padding", "1, 2 or 4"}},
           {"Resize(2, 'cubic')", {"interpolation", "bicubic", "cubic"}},
           {"Resize(2", {"expected ',' or ')'", "the end"}},
           {"Resize(2) x", {"expected the end", "'x'"}},
           {"Resize(2, max_size=)", {"expected a value"}},
           {"Resize(size=2, 3)", {"NAME=VALUE"}},
           {"", {"the name of a transform"}},
           {"(1)", {"the name of a transform"}},
           {"Resize('a)", {"closing quote"}},
           {"RandomApply(ToTensor)", {"list of transforms"}},
           {"Compose(ToTensor)", {"Compose: parameter 'transforms': expected a list of transforms"}},
           {"RandomErasing(value='noise')", {"'random'", "'noise'"}},
           {"ConvertImageDtype(torch.float16)", {"float32", "float16"}},
           {"ToDtype(torch.float32)", {"scale=True"}},
           {"Resize(2, 6)", {"PIL's numbers 0 to 5, found 6"}},
           {"Resize(3 / 0)", {"expected a divisor other than 0 at character 12, found '0'"}},
           {"Resize(int(16.5))", {"Resize: parameter 'size'", "expected a number"}},
           {"Compose()", {"Compose: parameter 'transforms' is missing"}},
           {"Resize(3**4)", {"expected a value at character 10, found '*'"}},
           {"Resize(1 + 1)", {"expected ',' or ')' at character 10, found '+'"}},
           {"Resize('a' / 2)", {"expected a number at character 8"}},
           {"Resize(2 * 3)", {"1, 2 or 3 times"}},
           {"Resize(-inf)", {"expected a value at character 9, found 'i'"}},
           {"Resize(1_000)", {"expected ',' or ')'"}},
           {"Resize(2\n max_size=3)", {"expected ',' or ')' at character 11, found 'm'"}},
           {"Resize(2)(3)", {"expected the end"}},
           {"Compose(\n    Pad(1)\n    ToTensor()\n)", {"expected ',' or ')'"}},
           {"Normalize([0.5] * 1e9, [1])", {"1, 2 or 3 times"}},
           {std::string(50, '['), {"the name of a transform"}},
           {"Resize(" + std::string(5000, '['), {"at most"}}}) {
    const auto transforms = parse_transforms({"ToTensor", text});
    ASSERT_FALSE(transforms.ok()) << text;
    EXPECT_EQ(transforms.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(transforms.status().message().rfind("transform 1, \"", 0), 0U) << transforms.status().message();
    for (const std::string& part : parts) {
      EXPECT_NE(transforms.status().message().find(part), std::string::npos) << transforms.status().message();
    }
  }
}

}  // namespace
}  // namespace lockstep::data
