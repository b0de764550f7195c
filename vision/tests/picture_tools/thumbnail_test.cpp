// Small copies of pictures, and sheets of many.
#include "picture_tools/thumbnail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lockstep::data {
namespace {

Image plain_picture(int width, int height, std::uint8_t level) {
  Image picture(width, height);
  for (int y = 0; y < height; ++y) std::fill_n(picture.row(y), picture.row_bytes(), level);
  return picture;
}

TEST(ContactSheet, PutsPicturesInRows) {
  const Image wide = plain_picture(40, 20, 200);
  const Image tiny = plain_picture(2, 2, 100);
  const std::vector<const Image*> pictures = {&wide, nullptr, &tiny, &tiny};
  auto sheet = contact_sheet(pictures, /*side=*/10, /*columns=*/3);
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet->width(), 30);
  EXPECT_EQ(sheet->height(), 20);
  const auto level = [&](int x, int y) { return static_cast<int>(sheet->pixel(x, y)[1]); };
  EXPECT_EQ(level(0, 1), 0);  // 40 x 20 became 10 x 5, in the middle
  EXPECT_EQ(level(0, 2), 200);
  EXPECT_EQ(level(9, 6), 200);
  EXPECT_EQ(level(9, 7), 0);
  EXPECT_EQ(level(15, 5), 0);  // no picture
  EXPECT_EQ(level(24, 4), 100);
  EXPECT_EQ(level(23, 4), 0);
  EXPECT_EQ(level(4, 14), 100);  // the second row
  EXPECT_EQ(level(15, 15), 0);
}

TEST(ContactSheet, OfFewPicturesIsNotWider) {
  const Image picture = plain_picture(10, 10, 50);
  const std::vector<const Image*> pictures = {&picture};
  auto sheet = contact_sheet(pictures, 10, 6);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->size(), (ImageSize{10, 10}));
}

}  // namespace
}  // namespace lockstep::data
