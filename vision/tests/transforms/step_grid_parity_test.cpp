// Perspectives, elastic displacements, crops and operations on colours, on pictures of odd and tiny sizes with extreme
// parameters: the pixels are those of torchvision on PIL pictures. step_grid.py has the grid.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "image/affine.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"
#include "transforms/parity_pictures.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using test::filter_from;

Color fill_from(const json& a) {
  const json& fill = a.at("fill");
  return fill.size() == 1 ? Color{fill[0], fill[0], fill[0]} : fill.get<Color>();
}

OutputSize size_from(const json& a) {
  return {a.at("size")[0], a.at("size")[1]};
}

// Adds the step or the crops of a case.
void add(const json& a, Plan& plan) {
  const std::string op = a.at("op");
  if (op == "perspective") {
    return add_step(plan, PerspectiveStep{a.at("matrix").get<Projection>(), filter_from(a), fill_from(a)});
  }
  if (op == "five_crop" || op == "ten_crop") {
    plan.crops = op == "five_crop" ? five_crops(plan.size, size_from(a))
                                   : ten_crops(plan.size, {size_from(a), a.at("vertical").get<bool>()});
    plan.size = {plan.crops.front().box.width, plan.crops.front().box.height};
    return;
  }
  if (op == "posterize") return add_step(plan, PosterizeStep{a.at("bits")});
  if (op == "solarize") return add_step(plan, SolarizeStep{a.at("threshold")});
  if (op == "sharpness") return add_step(plan, SharpnessStep{a.at("factor")});
  if (op == "autocontrast") return add_step(plan, AutoContrastStep{});
  if (op == "equalize") return add_step(plan, EqualizeStep{});
  if (op == "invert") return add_step(plan, InvertStep{});
  FAIL() << "unknown operation " << op;
}

class StepGridParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::ScratchFolder>();
    test::run_python("step_grid.py", {folder_->path()});
    cases_ = json::parse(std::ifstream(folder_->path() / "cases.json"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::vector<float> floats(const json& name, std::size_t count) {
    std::vector<float> values(count);
    std::ifstream file(folder_->path() / name.get<std::string>(), std::ios::binary);
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(float)));
    EXPECT_EQ(static_cast<std::size_t>(file.gcount()), count * sizeof(float));
    return values;
  }

  static inline std::unique_ptr<test::ScratchFolder> folder_;
  static inline json cases_;
};

TEST_F(StepGridParity, PixelsAreTorchvisions) {
  std::map<std::string, int> counts;
  for (const json& a : cases_) {
    const std::string op = a.at("op");
    if (op == "elastic" || op == "noise") continue;
    const test::PackedPicture picture = test::read_picture(folder_->path(), a.at("in"));
    const test::PackedPicture expected = test::read_picture(folder_->path(), a.at("out"));
    test::StepsAlone sample(picture);
    ASSERT_NO_FATAL_FAILURE(add(a, sample.plan()));
    const std::vector<std::uint8_t> ours = sample.pixels();
    ASSERT_EQ(ours.size(), expected.bytes.size()) << a.dump();
    EXPECT_EQ(test::largest_difference(ours, expected.bytes), 0) << a.dump();
    ++counts[op];
  }
  EXPECT_GE(counts.size(), 9U);
  EXPECT_GT(counts["perspective"], 50);
  EXPECT_GT(counts["ten_crop"], 50);
}

// torchvision solves for the matrix by least squares, whose last bits are not defined. So a position on the line
// between two pixels is sometimes taken for the other one.
TEST_F(StepGridParity, MatricesOfCornersAreTorchvisions) {
  std::size_t different = 0;
  std::size_t compared = 0;
  for (const json& a : cases_) {
    if (a.at("op") != "perspective") continue;
    const test::PackedPicture picture = test::read_picture(folder_->path(), a.at("in"));
    Corners corners;
    for (std::size_t i = 0; i < corners.size(); ++i) corners[i] = {a.at("corners")[i][0], a.at("corners")[i][1]};
    const std::optional<Projection> matrix = projection(corners_of(picture.size), corners);
    ASSERT_TRUE(matrix.has_value()) << a.dump();
    const auto theirs = a.at("matrix").get<Projection>();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      EXPECT_NEAR((*matrix)[i], theirs[i], 3e-7 * std::abs(theirs[i]) + 1e-11) << i << " " << a.dump();
    }
    test::StepsAlone sample(picture);
    add_step(sample.plan(), PerspectiveStep{*matrix, filter_from(a), fill_from(a)});
    const std::vector<std::uint8_t> ours = sample.pixels();
    const test::PackedPicture expected = test::read_picture(folder_->path(), a.at("out"));
    for (std::size_t i = 0; i < ours.size(); ++i) different += std::abs(ours[i] - expected.bytes[i]) > 1 ? 1 : 0;
    compared += ours.size();
  }
  EXPECT_LT(different, compared / 1000);
  RecordProperty("different", static_cast<int>(different));
}

// Positions are sums of float32: a pixel may be rounded to the next grey level, and sometimes a nearest pixel to its
// neighbour.
TEST_F(StepGridParity, ElasticPixelsAreTorchvisions) {
  int cases = 0;
  for (const json& a : cases_) {
    if (a.at("op") != "elastic") continue;
    const test::PackedPicture picture = test::read_picture(folder_->path(), a.at("in"));
    const test::PackedPicture expected = test::read_picture(folder_->path(), a.at("out"));
    const std::size_t pixels = picture.bytes.size() / static_cast<std::size_t>(picture.channels);
    const std::vector<float> both = floats(a.at("displacement"), 2 * pixels);
    const auto half = both.begin() + static_cast<std::ptrdiff_t>(pixels);
    const Displacement displacement{{both.begin(), half}, {half, both.end()}};
    const Image image = image_from_packed(picture.bytes, picture.size, picture.channels);
    Image moved;
    ImageSink sink(moved, picture.size);
    transform_elastic(image, displacement, filter_from(a), fill_from(a), sink);
    int different = 0;
    for (std::size_t i = 0; i < pixels; ++i) {
      for (std::size_t c = 0; c < static_cast<std::size_t>(picture.channels); ++c) {
        const int ours = moved.row(0)[4 * i + c];
        const int theirs = expected.bytes[i * static_cast<std::size_t>(picture.channels) + c];
        different += std::abs(ours - theirs) > (a.at("filter") == "bilinear" ? 1 : 0) ? 1 : 0;
      }
    }
    EXPECT_LE(different, a.at("filter") == "bilinear" ? 0 : static_cast<int>(picture.bytes.size() / 500)) << a.dump();
    ++cases;
  }
  EXPECT_GT(cases, 100);
}

TEST_F(StepGridParity, DisplacementsAreTorchvisions) {
  int cases = 0;
  for (const json& a : cases_) {
    if (a.at("op") != "noise") continue;
    const ImageSize size{a.at("in").at("width"), a.at("in").at("height")};
    const std::size_t pixels = static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height);
    const std::vector<float> all = floats(a.at("noise"), 4 * pixels);
    for (const std::size_t axis : {0U, 1U}) {
      const auto plane = [&](std::size_t number) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(number * pixels);
        return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(pixels));
      };
      std::vector<float> ours = plane(axis);
      displacement_of_noise(ours, size, {a.at("sigma")[0], a.at("sigma")[1]}, axis == 0, a.at("alpha")[axis]);
      const std::vector<float> theirs = plane(2 + axis);
      for (std::size_t i = 0; i < pixels; ++i) ASSERT_NEAR(ours[i], theirs[i], 2e-6 + 1e-5 * std::abs(theirs[i]));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

}  // namespace
}  // namespace lockstep::data
