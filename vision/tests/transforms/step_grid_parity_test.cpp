// Operations on colours, on pictures of odd and tiny sizes with extreme parameters: the pixels are those of torchvision
// on PIL pictures. step_grid.py has the grid.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/python/python.h"
#include "support/scratch_folder.h"
#include "transforms/parity_pictures.h"

namespace lockstep::data {
namespace {

using nlohmann::json;

// Adds the step of a case.
void add(const json& a, Plan& plan) {
  const std::string op = a.at("op");
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

  static inline std::unique_ptr<test::ScratchFolder> folder_;
  static inline json cases_;
};

TEST_F(StepGridParity, PixelsAreTorchvisions) {
  std::map<std::string, int> counts;
  for (const json& a : cases_) {
    const std::string op = a.at("op");
    const test::PackedPicture picture = test::read_picture(folder_->path(), a.at("in"));
    const test::PackedPicture expected = test::read_picture(folder_->path(), a.at("out"));
    test::StepsAlone sample(picture);
    ASSERT_NO_FATAL_FAILURE(add(a, sample.plan()));
    const std::vector<std::uint8_t> ours = sample.pixels();
    ASSERT_EQ(ours.size(), expected.bytes.size()) << a.dump();
    EXPECT_EQ(test::largest_difference(ours, expected.bytes), 0) << a.dump();
    ++counts[op];
  }
  EXPECT_EQ(counts.size(), 6U);
}

}  // namespace
}  // namespace lockstep::data
