// The names of the samples that a model gets most wrong.
#include "trainer/command/worst_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/datasets/packed_images.h"
#include "support/scratch_folder.h"

namespace lockstep::trainer_detail {
namespace {

// The loader's batches of an evaluation, in which the model takes every picture for one of a third class.
std::vector<std::string> names_of_all(const std::shared_ptr<const data::PackedImages>& pictures,
                                      std::int64_t batch_size) {
  WorstSamples worst(pictures, pictures->classes(), batch_size);
  data::DataLoader loader(pictures, {.batch_size = batch_size, .exact = true});
  std::int64_t first = 0;
  for (const auto& batch : loader) {
    torch::Tensor scores = torch::zeros({batch.data.size(0), 3});
    scores.select(1, 2).fill_(1);
    worst.add(batch, scores, std::exchange(first, first + batch_size));
  }
  std::vector<std::string> names;
  for (const report::Sample& sample : worst.take().samples) names.push_back(sample.name);
  std::sort(names.begin(), names.end());
  return names;
}

// The name of the corrupt picture ends in that of a good one.
TEST(WorstSamples, OnlyTheCorruptPictureOfAPackIsShownAsCorrupt) {
  const test::ScratchFolder folder;
  const ProcessGroupGuard group;
  const std::string file = folder.path("pictures.pack");
  const std::string pixels = "P6 1 1 255\nrgb";
  const std::vector<std::uint8_t> good(pixels.begin(), pixels.end());
  const std::vector<std::uint8_t> corrupt{'n', 'o'};
  Result<data::PackWriter> writer = data::PackWriter::create(file, {"bobcat", "cat", "dog"});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  ASSERT_TRUE(writer->add(corrupt, 0, "bobcat/1.jpg").ok());
  ASSERT_TRUE(writer->add(good, 0, "bobcat/2.jpg").ok());
  ASSERT_TRUE(writer->add(good, 1, "cat/1.jpg").ok());
  ASSERT_TRUE(writer->finish().ok());
  const auto open = [&](data::OnCorrupt policy) {
    return std::make_shared<const data::PackedImages>(file, data::Compose({data::ToTensor{}}),
                                                      data::ImageOptions{.on_corrupt = policy});
  };
  EXPECT_EQ(
      names_of_all(open(data::OnCorrupt::kReplace), 3),
      (std::vector<std::string>{"bobcat/1.jpg (corrupt: another picture in its place)", "bobcat/2.jpg", "cat/1.jpg"}));
  EXPECT_EQ(names_of_all(open(data::OnCorrupt::kSkip), 3), (std::vector<std::string>{"bobcat/2.jpg", "cat/1.jpg"}));
}

}  // namespace
}  // namespace lockstep::trainer_detail
