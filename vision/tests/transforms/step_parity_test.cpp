// For given parameters, the pixels of each step are those of torchvision on PIL pictures. There is no tolerance, except
// 1 grey level for GaussianBlur: the order of summation in torchvision's float convolution is not defined.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/python/python.h"
#include "support/scratch_folder.h"
#include "transforms/parity_pictures.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using test::filter_from;

PaddingMode mode_from(const std::string& name) {
  const std::map<std::string, PaddingMode> names{{"constant", PaddingMode::kConstant},
                                                 {"edge", PaddingMode::kEdge},
                                                 {"reflect", PaddingMode::kReflect},
                                                 {"symmetric", PaddingMode::kSymmetric}};
  return names.at(name);
}

Pad pad_from(const json& a) {
  const json& p = a.at("padding");
  return {{p[0], p[1], p[2], p[3]}, Fill(33), mode_from(a.at("mode"))};
}

std::optional<Point> center_from(const json& arguments) {
  if (!arguments.contains("center") || arguments["center"].is_null()) return std::nullopt;
  return Point{arguments["center"][0], arguments["center"][1]};
}

std::vector<Step> steps_of(const json& a, ImageSize picture) {
  const std::string op = a.at("op");
  const auto size = [&] { return ImageSize{a.at("size")[1], a.at("size")[0]}; };
  if (op == "resize") return {ResizeStep{size(), filter_from(a)}};
  if (op == "resized_crop") {
    const json& box = a.at("box");
    return {CropStep{{box[0], box[1], box[2], box[3]}}, ResizeStep{size(), filter_from(a)}};
  }
  if (op == "rotate") {
    return {
        rotation(picture, a.at("angle"), filter_from(a), a.at("expand"), center_from(a), a.at("fill").get<Color>())};
  }
  if (op == "affine") {
    return {affine(picture,
                   {.angle = a.at("angle"),
                    .translate = {a.at("translate")[0], a.at("translate")[1]},
                    .scale = a.at("scale"),
                    .shear = {a.at("shear")[0], a.at("shear")[1]},
                    .center = center_from(a)},
                   filter_from(a), a.at("fill").get<Color>())};
  }
  if (op == "brightness") return {BrightnessStep{a.at("factor")}};
  if (op == "contrast") return {ContrastStep{a.at("factor")}};
  if (op == "saturation") return {SaturationStep{a.at("factor")}};
  if (op == "sharpness") return {SharpnessStep{a.at("factor")}};
  if (op == "hue") return {HueStep{a.at("factor")}};
  if (op == "grey") return {GreyStep{a.at("channels")}};
  if (op == "posterize") return {PosterizeStep{a.at("bits")}};
  if (op == "solarize") return {SolarizeStep{a.at("threshold")}};
  if (op == "autocontrast") return {AutoContrastStep{}};
  if (op == "equalize") return {EqualizeStep{}};
  if (op == "invert") return {InvertStep{}};
  if (op == "blur") return {BlurStep{{a.at("size")[1], a.at("size")[0], a.at("sigma")}}};
  throw std::runtime_error("unknown operation " + op);
}

TEST(StepParity, PixelsAreTorchvisions) {
  const test::ScratchFolder folder;
  test::run_python("image_steps.py", {folder.path()});
  const json cases = json::parse(std::ifstream(folder.path() / "cases.json"));
  ASSERT_GT(cases.size(), 300U);
  std::map<std::string, int> worst;
  for (const json& arguments : cases) {
    const test::PackedPicture picture = test::read_picture(folder.path(), arguments.at("in"));
    const test::PackedPicture expected = test::read_picture(folder.path(), arguments.at("out"));
    test::StepsAlone sample(picture);
    if (arguments.at("op") == "pad") {
      draw_all({pad_from(arguments)}, {}, 0, sample.plan());
    } else {
      for (const Step& step : steps_of(arguments, picture.size)) add_step(sample.plan(), step);
    }
    ASSERT_EQ(sample.plan().size, expected.size) << arguments.dump();
    ASSERT_EQ(sample.plan().channels, expected.channels) << arguments.dump();
    const int difference = test::largest_difference(sample.pixels(), expected.bytes);
    EXPECT_LE(difference, arguments.at("op") == "blur" ? 1 : 0) << arguments.dump();
    int& so_far = worst[arguments.at("op")];
    so_far = std::max(so_far, difference);
  }
  for (const auto& [op, difference] : worst) RecordProperty(op, difference);
}

}  // namespace
}  // namespace lockstep::data
