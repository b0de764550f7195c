// Compares RandAugment and TrivialAugmentWide with torchvision's: strengths, drawn operations, and the pixels of each.
#include <gtest/gtest.h>

#include <map>

#include "support/python/python.h"
#include "support/scratch_folder.h"
#include "transforms/augment.h"
#include "transforms/distribution.h"
#include "transforms/parity_pictures.h"

namespace lockstep::data {
namespace {

using augment::Op;
using nlohmann::json;

class AugmentParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::ScratchFolder>();
    test::run_python("augment_policies.py", {folder_->path()});
    tables_ = json::parse(std::ifstream(folder_->path() / "tables.json"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static inline std::unique_ptr<test::ScratchFolder> folder_;
  static inline json tables_;
};

TEST_F(AugmentParity, StrengthsAreTorchvisions) {
  ASSERT_EQ(tables_.at("spaces").size(), 9U);
  for (const json& space : tables_.at("spaces")) {
    const augment::Strengths most = space.at("transform") == "TrivialAugmentWide"
                                        ? augment::trivial_strengths()
                                        : augment::rand_strengths({space.at("width"), space.at("height")});
    ASSERT_EQ(space.at("ops").size(), static_cast<std::size_t>(augment::kOps));
    for (std::size_t place = 0; place < space.at("ops").size(); ++place) {
      const json& found = space.at("ops")[place];
      const auto op = static_cast<Op>(place);
      EXPECT_EQ(augment::has_sign(op), found.at("signed").get<bool>()) << place;
      const auto magnitudes = found.at("magnitudes").get<std::vector<double>>();
      EXPECT_EQ(augment::has_level(op), magnitudes.size() > 1) << place;
      for (std::size_t level = 0; level < magnitudes.size(); ++level) {
        // The rounding of torch.linspace depends on the processor's vectors: the last bit is not defined.
        EXPECT_FLOAT_EQ(static_cast<float>(augment::magnitude_of(op, static_cast<int>(level), space.at("bins"), most)),
                        static_cast<float>(magnitudes[level]))
            << place << " " << level << " of " << space.at("bins");
      }
    }
  }
}

template <typename Options>
std::vector<double> drawn_codes(const Options& options, std::size_t count) {
  std::vector<double> codes;
  for (std::size_t i = 0; i < count; ++i) {
    CounterRandom random({5, 0, static_cast<std::int64_t>(i)}, 0);
    double code = 0;
    double place = 1;
    augment::draw(options, random, {61, 47}, [&](const augment::Drawn& operation) {
      code += (2 * static_cast<int>(operation.op) + (operation.magnitude < 0 ? 1 : 0) + 1) * place;
      place *= 32;
    });
    codes.push_back(code);
  }
  return codes;
}

TEST_F(AugmentParity, OperationsAreDrawnAsOften) {
  const auto same_distribution = [&](const auto& options, const char* name) {
    const auto expected = tables_.at("drawn").at(name).get<std::vector<double>>();
    EXPECT_LT(test::distance(drawn_codes(options, expected.size()), expected), test::distance_bound(expected.size()))
        << name;
  };
  same_distribution(RandAugment{}, "RandAugment");
  same_distribution(TrivialAugmentWide{}, "TrivialAugmentWide");
}

TEST_F(AugmentParity, PixelsAreTorchvisions) {
  ASSERT_GT(tables_.at("cases").size(), 300U);
  for (const json& a : tables_.at("cases")) {
    const test::PackedPicture picture = test::read_picture(folder_->path(), a.at("in"));
    const test::PackedPicture expected = test::read_picture(folder_->path(), a.at("out"));
    const Fill fill = picture.channels == 1 ? Fill{9} : Fill{9, 80, 200};
    test::StepsAlone sample(picture);
    augment::add_operation(sample.plan(), {a.at("op").get<Op>(), a.at("magnitude")}, test::filter_from(a), fill);
    EXPECT_EQ(test::largest_difference(sample.pixels(), expected.bytes), 0) << a.dump();
  }
}

}  // namespace
}  // namespace lockstep::data
