// Files of every kind through whole pipelines, from the folder to the batch: the samples are those of torchvision's
// ImageFolder and transforms with PyTorch's DataLoader on PIL pictures. picture_pipelines.py has the grid, docs/data.md
// the tolerances.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/packed_images.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using Steps = std::vector<Transform>;

const Normalize kNormalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
const Steps kJitter{ColorJitter{.brightness = {1.25, 1.25}}, ColorJitter{.contrast = {0.625, 0.625}},
                    ColorJitter{.saturation = {1.75, 1.75}}, ColorJitter{.hue = {0.125, 0.125}}};
const Steps kFlips{RandomHorizontalFlip{1.0}, RandomVerticalFlip{1.0}};

RandomResizedCrop middle(int size) {
  return {.size = size, .scale = {3.0, 3.0}, .ratio = {0.75, 0.75}};
}

Steps joined(std::initializer_list<Steps> parts) {
  Steps all;
  for (const Steps& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Tolerances in grey levels. In exact mode: for each number. In fast mode: for the mean difference of each channel. (No
// pipeline makes a picture so small that fast mode decodes a JPEG at a smaller size.)
struct Pipeline {
  Steps steps;
  double exact = 0.0;
  double fast = 0.001;
};

// The same pipelines as in picture_pipelines.py.
std::map<std::string, Pipeline> pipelines() {
  const RandomAffine affine{.degrees = {20, 20}, .scale = Interval01{1.25, 1.25}, .shear = AngleRange{5, 5}};
  return {
      {"nothing", {{ToTensor{}}}},
      {"resize", {{Resize{40}, ToTensor{}}}},
      {"enlarge", {{Resize{.size = OutputSize{90, 120}, .interpolation = Interpolation::kBicubic}, ToTensor{}}}},
      {"center_crop", {{CenterCrop{{37, 53}}, ToTensor{}}}},
      {"center_crop_wide", {{CenterCrop{{80, 64}}, Resize{OutputSize{31, 30}}, ToTensor{}}}},
      {"random_resized_crop", {{middle(32), ToTensor{}}}},
      {"half", {{middle(20), ToTensor{}}}},
      {"flips", {joined({kFlips, {ToTensor{}}})}},
      {"rotation", {{RandomRotation{{33, 33}}, ToTensor{}}, 0.0, 1.0}},
      {"rotation_bilinear", {{RandomRotation{{-20, -20}, Interpolation::kBilinear, true}, ToTensor{}}, 0.0, 1.0}},
      {"affine", {{affine, ToTensor{}}, 0.0, 1.0}},
      {"jitter", {joined({kJitter, {ToTensor{}}})}},
      {"grey", {joined({{Grayscale{}, Resize{40}}, kFlips, kJitter, {ToTensor{}}})}},
      {"grey_as_rgb", {{Grayscale{3}, kJitter[0], kJitter[1], ToTensor{}}}},
      {"random_grey", {{RandomGrayscale{1.0}, ToTensor{}}}},
      {"blur", {{GaussianBlur{{9, 3}, {1.5, 1.5}}, ToTensor{}}, 1.0, 1.0}},
      {"pad", {{Pad{4, 33, PaddingMode::kReflect}, RandomCrop{{75, 99}}, ToTensor{}}}},
      {"colours",
       {{RandomInvert{1.0}, RandomPosterize{5, 1.0}, RandomSolarize{100, 1.0}, RandomAutocontrast{1.0}, ToTensor{}}}},
      {"equalize", {{RandomApply{{RandomEqualize{1.0}}, 1.0}, RandomAdjustSharpness{3.0, 1.0}, ToTensor{}}}},
      {"lists", {{RandomOrder{{RandomChoice{{kFlips[0]}}}}, RandomApply{kFlips, 0.0}, Resize{40}, ToTensor{}}}},
      {"normalize", {{ToTensor{}, kNormalize}}},
      {"reference",
       {joined({{middle(32)},
                kFlips,
                {RandomRotation{{45, 45}}, RandomAffine{{45, 45}}},
                kJitter,
                {ToTensor{}, kNormalize}}),
        0.0, 20.0}},
      {"bytes", {{}}},
      {"grey_bytes", {{Grayscale{}, Resize{40}}}},
  };
}

// Memory that is never zero by chance: values that a sample does not write are NaN or 255.
class PoisonedMemory : public BatchMemory {
 public:
  torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override {
    torch::Tensor memory = torch::empty(sizes, dtype);
    std::memset(memory.data_ptr(), 0xff, memory.nbytes());
    return memory;
  }
};

torch::Tensor all_samples(std::shared_ptr<const Dataset> dataset) {
  DataLoader loader(std::move(dataset), {.batch_size = 7, .num_workers = 2, .rank = 0, .world_size = 1});
  std::vector<torch::Tensor> batches;
  for (auto& [images, labels] : loader) batches.push_back(images);
  return torch::cat(batches);
}

// In grey levels, for samples of any type.
torch::Tensor differences(const torch::Tensor& ours, const torch::Tensor& theirs, const std::string& pipeline) {
  torch::Tensor levels = (ours.to(torch::kDouble) - theirs.to(torch::kDouble)).abs();
  if (ours.scalar_type() == torch::kFloat) levels = levels * 255.0;
  if (pipeline == "normalize" || pipeline == "reference") {
    levels = levels * torch::tensor(kNormalize.std, torch::kDouble).view({3, 1, 1});
  }
  return levels;
}

class PicturePipelineParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::make_unique<test::ScratchFolder>();
    test::run_python("picture_pipelines.py", {root_->path()});
    described_ = json::parse(std::ifstream(root_->path() / "pipelines.json"));
    files_ = json::parse(std::ifstream(root_->path() / "samples.json"));
  }
  static void TearDownTestSuite() { root_.reset(); }

  static std::filesystem::path pictures() { return root_->path() / "pictures"; }

  static torch::Tensor theirs(const std::string& pipeline) {
    const json& about = described_.at(pipeline);
    const auto dtype = about.at("float").get<bool>() ? torch::kFloat : torch::kByte;
    torch::Tensor samples = torch::empty(about.at("shape").get<std::vector<std::int64_t>>(), dtype);
    std::ifstream file(root_->path() / (pipeline + ".raw"), std::ios::binary);
    file.read(static_cast<char*>(samples.data_ptr()), static_cast<std::streamsize>(samples.nbytes()));
    EXPECT_EQ(static_cast<std::size_t>(file.gcount()), samples.nbytes());
    return samples;
  }

  struct Tolerance {
    double each = 255.0;
    double mean = 255.0;
  };
  static void expect_close(const torch::Tensor& ours, const std::string& name, const Tolerance& tolerance) {
    const torch::Tensor expected = theirs(name);
    ASSERT_EQ(ours.sizes(), expected.sizes()) << name;
    ASSERT_EQ(ours.scalar_type(), expected.scalar_type()) << name;
    const torch::Tensor levels = differences(ours, expected, name);
    for (std::int64_t i = 0; i < ours.size(0); ++i) {
      const double largest = levels[i].max().item<double>();
      const double largest_mean = levels[i].mean({-2, -1}).max().item<double>();
      constexpr double kRounded = 1.00001;  // a difference of two floats, each of which is a level / 255
      EXPECT_TRUE(largest <= tolerance.each * kRounded) << name << ", " << files_[i] << ": " << largest;
      EXPECT_TRUE(largest_mean <= tolerance.mean) << name << ", " << files_[i] << ": mean " << largest_mean;
    }
  }

  static inline std::unique_ptr<test::ScratchFolder> root_;
  static inline json described_;
  static inline json files_;
};

TEST_F(PicturePipelineParity, SamplesAreTorchvisionsWhateverTheFormat) {
  ASSERT_EQ(described_.size(), pipelines().size() + 1);  // "packed" is for packs
  ASSERT_GT(files_.size(), 100U);
  for (const auto& [name, pipeline] : pipelines()) {
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      const bool exact = precision == Precision::kExact;
      const auto folder = std::make_shared<const ImageFolder>(pictures(), Compose(pipeline.steps, precision));
      ASSERT_EQ(folder->size(), std::ssize(files_));
      for (std::size_t i = 0; i < files_.size(); ++i) {
        ASSERT_TRUE(folder->samples()[i].path.ends_with("/" + files_[i].get<std::string>()));
      }
      const torch::Tensor ours = all_samples(folder);
      expect_close(ours, name, exact ? Tolerance{.each = pipeline.exact} : Tolerance{.mean = pipeline.fast});
      PoisonedMemory poisoned;
      std::vector<std::int64_t> indices(files_.size());
      std::iota(indices.begin(), indices.end(), 0);
      const torch::Tensor again = folder->get_batch(indices, {.memory = &poisoned}).data;
      EXPECT_TRUE(torch::equal(again, ours)) << name << ": a part of a sample is not written, exact mode " << exact;
    }
  }
}

TEST_F(PicturePipelineParity, PacksGiveTheSamplesOfTheirFolder) {
  const std::filesystem::path pack = root_->path() / "as-they-are.pack";
  ASSERT_TRUE(pack_folder(pictures(), pack).ok());
  for (const char* name : {"nothing", "bytes", "grey", "reference"}) {
    const Compose compose(pipelines().at(name).steps, Precision::kExact);
    expect_close(all_samples(std::make_shared<const PackedImages>(pack, compose)), name, {.each = 0.0});
  }
  const std::filesystem::path smaller = root_->path() / "smaller.pack";
  ASSERT_TRUE(pack_folder(pictures(), smaller, {.shorter_side = 40, .quality = 98}).ok());
  const auto packed = std::make_shared<const PackedImages>(smaller, Compose({}, Precision::kExact));
  expect_close(all_samples(packed), "packed", {.each = 0.0});
}

}  // namespace
}  // namespace lockstep::data
