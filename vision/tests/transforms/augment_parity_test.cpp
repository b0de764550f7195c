// Compares AutoAugment, RandAugment, TrivialAugmentWide and AugMix with torchvision's: the tables, the drawn
// operations, and the pixels of each.
#include <gtest/gtest.h>

#include <cmath>
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

const std::map<std::string, AutoAugmentPolicy> kPolicies{{"imagenet", AutoAugmentPolicy::kImageNet},
                                                         {"cifar10", AutoAugmentPolicy::kCifar10},
                                                         {"svhn", AutoAugmentPolicy::kSvhn}};
const std::map<std::string, Op> kOps{
    {"Identity", Op::kIdentity},         {"ShearX", Op::kShearX},         {"ShearY", Op::kShearY},
    {"TranslateX", Op::kTranslateX},     {"TranslateY", Op::kTranslateY}, {"Rotate", Op::kRotate},
    {"Brightness", Op::kBrightness},     {"Color", Op::kColor},           {"Contrast", Op::kContrast},
    {"Sharpness", Op::kSharpness},       {"Posterize", Op::kPosterize},   {"Solarize", Op::kSolarize},
    {"AutoContrast", Op::kAutoContrast}, {"Equalize", Op::kEqualize},     {"Invert", Op::kInvert}};

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

TEST_F(AugmentParity, PoliciesAreTorchvisions) {
  ASSERT_EQ(tables_.at("policies").size(), kPolicies.size());
  for (const auto& [name, policy] : kPolicies) {
    const json& theirs = tables_.at("policies").at(name);
    const augment::Policy& ours = augment::policy_of(policy);
    ASSERT_EQ(theirs.size(), ours.size()) << name;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      for (std::size_t part = 0; part < 2; ++part) {
        const json& expected = theirs[i][part];
        EXPECT_EQ(ours[i][part].op, kOps.at(expected[0])) << name << " " << i;
        EXPECT_EQ(ours[i][part].p, expected[1].get<double>()) << name << " " << i;
        EXPECT_EQ(ours[i][part].level, expected[2].is_null() ? 0 : expected[2].get<int>()) << name << " " << i;
      }
    }
  }
}

TEST_F(AugmentParity, StrengthsAreTorchvisions) {
  const auto strengths = [](const std::string& transform, ImageSize size) {
    if (transform == "trivial_spaces") return augment::trivial_strengths();
    return transform == "mix_spaces" ? augment::mix_strengths(size) : augment::auto_strengths(size);
  };
  for (const char* transform : {"auto_spaces", "rand_spaces", "trivial_spaces", "mix_spaces"}) {
    for (const json& space : tables_.at(transform)) {
      const augment::Strengths most = strengths(transform, {space.at("width"), space.at("height")});
      EXPECT_EQ(space.at("ops").size(), std::string("mix_spaces") == transform ? augment::kMixOps.size() : 14U);
      for (const auto& [name, found] : space.at("ops").items()) {
        const Op op = kOps.at(name);
        EXPECT_EQ(augment::has_sign(op), found.at("signed").get<bool>()) << name;
        const auto magnitudes = found.at("magnitudes").get<std::vector<double>>();
        EXPECT_EQ(augment::has_level(op), magnitudes.size() > 1) << name;
        for (std::size_t level = 0; level < magnitudes.size(); ++level) {
          // The rounding of torch.linspace depends on the processor's vectors: the last bit is not defined.
          EXPECT_FLOAT_EQ(
              static_cast<float>(augment::magnitude_of(op, static_cast<int>(level), space.at("bins"), most)),
              static_cast<float>(magnitudes[level]))
              << name << " " << level << " of " << space.at("bins");
        }
      }
    }
  }
}

template <typename Options>
std::vector<double> drawn(const Options& options, std::size_t count) {
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
  for (const auto& [name, theirs] : tables_.at("drawn").items()) {
    const auto expected = theirs.get<std::vector<double>>();
    const std::vector<double> ours = name == "rand"      ? drawn(RandAugment{}, expected.size())
                                     : name == "trivial" ? drawn(TrivialAugmentWide{}, expected.size())
                                                         : drawn(AutoAugment{kPolicies.at(name)}, expected.size());
    EXPECT_LT(test::distance(ours, expected), test::distance_bound(expected.size())) << name;
  }
}

TEST_F(AugmentParity, PixelsAreTorchvisions) {
  const test::PackedPicture picture = test::read_picture(folder_->path(), tables_.at("in"));
  ASSERT_GT(tables_.at("cases").size(), 80U);
  for (const json& arguments : tables_.at("cases")) {
    const test::PackedPicture expected = test::read_picture(folder_->path(), arguments.at("out"));
    test::StepsAlone sample(picture);
    const auto filter = arguments.at("filter") == "nearest" ? Interpolation::kNearest : Interpolation::kBilinear;
    augment::add_operation(sample.plan(), {kOps.at(arguments.at("op")), arguments.at("magnitude")}, filter,
                           {9, 80, 200});
    EXPECT_EQ(test::largest_difference(sample.pixels(), expected.bytes), 0) << arguments.dump();
  }
}

// The weights, the lengths of the chains, and one operation of each mixture.
TEST_F(AugmentParity, MixturesAreDrawnAsOften) {
  for (const json& theirs : tables_.at("mixtures")) {
    const AugMix options{.severity = theirs.at("severity"),
                         .mixture_width = theirs.at("width"),
                         .chain_depth = theirs.at("depth"),
                         .alpha = theirs.at("alpha"),
                         .all_ops = theirs.at("all_ops")};
    const Compose compose({options});
    const auto count = theirs.at("picture").size();
    std::map<std::string, std::vector<double>> ours;
    for (std::size_t i = 0; i < count; ++i) {
      const SampleKey key{5, 0, static_cast<std::int64_t>(i)};
      const SamplePlan plan = compose.draw({61, 47}, key);
      const auto& mix = std::get<MixStep>(plan->steps.at(0));
      ours["picture"].push_back(mix.weight);
      ours["first"].push_back(mix.chains.front().weight);
      ours["steps"].push_back(static_cast<double>(plan->chain_steps.size()));
      CounterRandom random(key, 1);
      const augment::Drawn op = augment::draw_mix_op(options, random, {61, 47});
      // Without the last bits, which are not defined.
      ours["op"].push_back(1000.0 * static_cast<int>(op.op) + std::nearbyint(op.magnitude * 100.0) / 100.0);
    }
    for (const auto& [name, numbers] : ours) {
      const auto expected = theirs.at(name).get<std::vector<double>>();
      EXPECT_LT(test::distance(numbers, expected), test::distance_bound(count)) << name << " " << theirs.at("alpha");
    }
  }
}

// For given weights and operations. torchvision takes its tensor operations for AugMix, also for PIL pictures; its own
// code with its PIL operations gives our bits.
TEST_F(AugmentParity, MixturesOfPixelsAreTorchvisions) {
  ASSERT_GT(tables_.at("mixes").size(), 20U);
  double worst_mean = 0.0;
  for (const json& mix : tables_.at("mixes")) {
    const test::PackedPicture picture = test::read_picture(folder_->path(), mix.at("in"));
    test::StepsAlone sample(picture);
    Plan& plan = sample.plan();
    const std::size_t before = plan.steps.size();
    const Fill fill = picture.channels == 1 ? Fill{9} : Fill{9, 80, 200};
    MixStep step{mix.at("weight").get<float>(), {}};
    for (const json& chain : mix.at("chains")) {
      const std::size_t begin = plan.chain_steps.size();
      for (const json& op : chain.at("ops")) {
        augment::add_operation(plan, {kOps.at(op[0]), op[1]}, Interpolation::kBilinear, fill);
        plan.chain_steps.insert(plan.chain_steps.end(), plan.steps.begin() + static_cast<std::ptrdiff_t>(before),
                                plan.steps.end());
        plan.steps.resize(before);
      }
      step.chains.push_back({chain.at("weight").get<float>(), begin, plan.chain_steps.size()});
    }
    add_step(plan, step);
    const std::vector<std::uint8_t> ours = sample.pixels();
    const test::PackedPicture expected = test::read_picture(folder_->path(), mix.at("out"));
    EXPECT_EQ(test::largest_difference(ours, expected.bytes), 0) << mix.dump();
    const test::PackedPicture tensors = test::read_picture(folder_->path(), mix.at("tensors"));
    // In tiny pictures all pixels are at the border, where the tensor operations mix pixels with the fill colour.
    if (picture.size.width >= 40) worst_mean = std::max(worst_mean, test::mean_difference(ours, tensors.bytes));
  }
  EXPECT_LT(worst_mean, 4.0);
}

}  // namespace
}  // namespace lockstep::data
