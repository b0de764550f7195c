#include "lockstep/datasets/packed_images.h"

#include <gtest/gtest.h>

#include "image/picture_files.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/datasets/image_folder.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

void fill_two_classes(const test::ScratchFolder& scratch) {
  for (int i = 0; i < 6; ++i) {
    const auto picture = test::make_picture(60 + 7 * i, 50, static_cast<std::uint32_t>(i));
    scratch.write(std::string(i % 2 == 0 ? "a/" : "b/") + std::to_string(i) + ".jpg",
                  test::text(test::encode_jpeg(picture)));
  }
}

TEST(PackedImages, GivesTheSamplesOfItsFolder) {
  const test::ScratchFolder scratch;
  fill_two_classes(scratch);
  const test::ScratchFolder other;
  ASSERT_TRUE(pack_folder(scratch.path(), other.path() / "p.pack").ok());
  const Compose transform({RandomResizedCrop{24}, RandomHorizontalFlip{}, ToTensor{}});
  const DataLoaderOptions options{
      .batch_size = 4, .shuffle = true, .seed = 3, .num_workers = 2, .rank = 0, .world_size = 1};
  DataLoader packed(PackedImages(other.path() / "p.pack", transform), options);
  DataLoader folder(ImageFolder(scratch.path(), transform), options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto expected = folder.begin();
    for (auto& [images, labels] : packed) {
      EXPECT_TRUE(torch::equal(images, expected->data));
      EXPECT_TRUE(torch::equal(labels, expected->target));
      ++expected;
    }
  }
}

TEST(PackedImages, ErrorsNameThePackAndThePicture) {
  const test::ScratchFolder scratch;
  EXPECT_THROW(PackedImages(scratch.path() / "no.pack"), DataError);
  const std::filesystem::path file = scratch.path() / "p.pack";
  Result<PackWriter> writer = PackWriter::create(file, {"a"});
  const std::vector<std::uint8_t> rubbish{'n', 'o'};
  ASSERT_TRUE(writer.value().add(rubbish, 0, "a/no.jpg").ok());
  ASSERT_TRUE(writer.value().finish().ok());
  try {
    PackedImages(file).get(0);
    FAIL();
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("p.pack: a/no.jpg"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::data
