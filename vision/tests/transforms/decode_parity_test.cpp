// Files of every kind decode to the pixels of PIL's Image.open(file).convert("RGB").
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/image/decode.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

// Compares all files in a list of image_files.py.
void expect_pils_pixels(const test::ScratchFolder& folder, const std::string& list, const DecodeOptions& options) {
  const nlohmann::json files = nlohmann::json::parse(std::ifstream(folder.path() / list));
  ASSERT_GT(files.size(), 25U);
  for (const nlohmann::json& file : files) {
    const std::string name = file.at("file");
    const Result<Image> image = decode_image(folder.path() / name, options);
    ASSERT_TRUE(image.ok()) << image.status().message();
    ASSERT_EQ(image.value().size(), (ImageSize{file.at("width"), file.at("height")})) << name;
    std::ifstream raw(folder.path() / file.at("pixels").get<std::string>(), std::ios::binary);
    const std::string expected{std::istreambuf_iterator<char>(raw), {}};
    std::string ours;
    for (int y = 0; y < image.value().height(); ++y) {
      for (int x = 0; x < image.value().width(); ++x) {
        for (const std::uint8_t value : image.value().pixel(x, y)) ours.push_back(static_cast<char>(value));
      }
    }
    int different = 0;
    int largest = 0;
    ASSERT_EQ(ours.size(), expected.size()) << name;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const int difference = std::abs(static_cast<std::uint8_t>(ours[i]) - static_cast<std::uint8_t>(expected[i]));
      different += difference != 0 ? 1 : 0;
      largest = std::max(largest, difference);
    }
    EXPECT_EQ(different, 0) << name << ": " << different << " bytes differ, by up to " << largest;
  }
}

TEST(DecodeParity, PixelsArePils) {
  const test::ScratchFolder folder;
  test::run_python("image_files.py", {folder.path()});
  expect_pils_pixels(folder, "files.json", {});
  expect_pils_pixels(folder, "turned.json", {.apply_orientation = true});
}

}  // namespace
}  // namespace lockstep::data
