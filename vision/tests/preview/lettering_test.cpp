#include "preview/lettering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace lockstep::data {
namespace {

constexpr int kWidth = 60;
constexpr int kHeight = Lettering::kLineHeight + 4;

Image drawn(std::string_view text, int left = 0, int width = kWidth) {
  Image image(kWidth, kHeight);
  std::fill_n(image.row(0), image.row_bytes() * kHeight, std::uint8_t{0});
  Result<Lettering> letters = Lettering::find();
  EXPECT_TRUE(letters.ok()) << letters.status().message();
  letters.value().draw(image, left, 2, width, text);
  return image;
}

int ink_of(const Image& image) {
  int ink = 0;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) ink += image.pixel(x, y)[0] > 60 ? 1 : 0;
  }
  return ink;
}

TEST(Lettering, EachLetterLooksDifferentInAnyScript) {
  std::set<std::vector<std::uint8_t>> looks;
  const std::vector<std::string_view> letters{"a",      "b",      "?",      "\u00e4", "\u00df",
                                              "\u0416", "\u03c9", "\u0127", "\u20ac"};
  for (const std::string_view letter : letters) {
    const Image image = drawn(letter);
    EXPECT_GT(ink_of(image), 4) << letter;
    looks.insert(packed_bytes(image));
  }
  EXPECT_EQ(looks.size(), letters.size());
}

TEST(Lettering, StaysInsideOfItsRoom) {
  for (const std::string_view text : {"Aj\u00c4\u0327\u0323 and more, far more than fits",
                                      "\u0416\u0416\u0416\u0416\u0416\u0416\u0416", "|||||||||||||||||||"}) {
    const Image image = drawn(text, 5, 40);
    EXPECT_GT(ink_of(image), 20);
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) {
        if (image.pixel(x, y)[0] == 0) continue;
        EXPECT_TRUE(x >= 5 && x < 45 && y >= 2 && y < 2 + Lettering::kLineHeight) << x << ", " << y << ": " << text;
      }
    }
  }
  EXPECT_EQ(ink_of(drawn("A", 5, 0)), 0);
}

// A long text ends in an ellipsis: the text after it makes no difference.
TEST(Lettering, ShortensWhatIsTooLong) {
  EXPECT_EQ(packed_bytes(drawn("a long name of a class")), packed_bytes(drawn("a long name of another class")));
  EXPECT_NE(packed_bytes(drawn("a short")), packed_bytes(drawn("a shorx")));
}

TEST(Lettering, AnyBytesAreDrawn) {
  EXPECT_EQ(packed_bytes(drawn("\xff")), packed_bytes(drawn("\ufffd")));
  EXPECT_GT(ink_of(drawn("\xc3")), 0);
  EXPECT_GT(ink_of(drawn("\U0010ffff")), 0);  // no font has it: a box
  drawn(std::string_view("\0\n\t\xed\xa0\x80\xf8\x88\x80\x80\x80", 11));
  EXPECT_EQ(ink_of(drawn("")), 0);
}

}  // namespace
}  // namespace lockstep::data
