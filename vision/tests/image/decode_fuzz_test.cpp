// Damaged files of every format give a picture or an error, never a crash, a hang or a leak (which sanitizers report).
#include <gtest/gtest.h>

#include <random>

#include "image/damage.h"
#include "image/decoders.h"
#include "image/encoders.h"
#include "support/effort.h"

namespace lockstep::data {
namespace {

using Bytes = std::vector<std::uint8_t>;

void fuzz(const Bytes& original, std::uint32_t seed) {
  constexpr int kTrials = test::repetitions(2000);
  std::mt19937 random(seed);
  Image memory;
  int errors = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Bytes bytes = test::damaged(original, random);
    const DecodeOptions options{.max_pixels = 1 << 18, .strict = trial % 2 == 0};
    errors += decode_region(bytes, {.options = options}, memory).ok() ? 0 : 1;
    const Result<ImageSize> size = image_size(bytes);
    if (size.ok() && size.value().width > 20 && size.value().height > 20) {
      const Result<DecodedRegion> part = decode_region(bytes, {.options = options, .region = {7, 9, 11, 8}}, memory);
      if (part.ok()) {
        ASSERT_EQ(part.value().view.width, 11);
        ASSERT_EQ(part.value().view.height, 8);
      }
    }
    (void)decode_image(bytes, {.max_pixels = 1 << 18, .apply_orientation = true});
  }
  EXPECT_GT(errors, kTrials / 10);
}

TEST(DecodeFuzz, Jpeg) {
  fuzz(test::encode_jpeg(test::make_picture(57, 43)), 1);
}
TEST(DecodeFuzz, ProgressiveJpeg) {
  fuzz(test::encode_jpeg(test::make_picture(57, 43), {.progressive = true, .restart_interval = 3}), 2);
}
TEST(DecodeFuzz, JpegOfOneAndFourComponents) {
  fuzz(test::encode_jpeg(test::make_picture(57, 43), {.components = 1}), 9);
  fuzz(test::encode_jpeg(test::make_picture(57, 43), {.components = 4}), 10);
}
TEST(DecodeFuzz, TurnedJpeg) {
  fuzz(test::with_orientation(test::encode_jpeg(test::make_picture(57, 43)), 6), 11);
}
TEST(DecodeFuzz, Png) {
  fuzz(test::encode_png(test::make_picture(57, 43)), 3);
}
TEST(DecodeFuzz, WidePng) {
  fuzz(test::encode_png(test::make_picture(57, 43), {.color_type = 0, .bits = 16}), 12);
  fuzz(test::encode_png(test::make_picture(57, 43), {.color_type = 6, .bits = 16, .interlaced = true}), 13);
}
TEST(DecodeFuzz, Webp) {
  fuzz(test::encode_webp(test::make_picture(57, 43)), 4);
}
TEST(DecodeFuzz, Bmp) {
  fuzz(test::encode_bmp(test::make_picture(57, 43)), 5);
}

TEST(DecodeFuzz, Tiff) {
  fuzz(test::encode_tiff(test::make_picture(57, 43)), 6);
}

TEST(DecodeFuzz, Ppm) {
  for (const char* header :
       {"P6\n19 11\n255\n", "P5 38 11 999\n", "P4\n91\n55\n", "P3 # text\n9 7\n99\n", "P1\n25\n20\n"}) {
    const std::string_view text(header);
    Bytes bytes(text.begin(), text.end());
    std::mt19937 random(8);
    const bool numbers = text[1] <= '3';
    for (int i = 0; i < 836; ++i) {
      bytes.push_back(static_cast<std::uint8_t>(numbers ? (i % 3 == 0 ? ' ' : '0' + random() % 2) : random()));
    }
    Image memory;
    ASSERT_TRUE(decode_region(bytes, {}, memory).ok()) << header;
    fuzz(bytes, 7);
  }
}

// 16 and 32 bits, with masks, and palettes.
TEST(DecodeFuzz, BmpOfEveryDepth) {
  for (const std::uint8_t bits : {1, 4, 8, 16, 32}) {
    Bytes bytes{'B', 'M', 0, 0, 0, 0,  0, 0, 0, 0, 0, 0,    0, 0, 40, 0, 0,
                0,   31,  0, 0, 0, 25, 0, 0, 0, 1, 0, bits, 0, 0, 0,  0, 0};
    bytes.resize(54);
    if (bits == 16) {
      bytes[30] = 3;
      bytes.insert(bytes.end(), {0, 0xf8, 0, 0, 0xe0, 7, 0, 0, 31, 0, 0, 0});
    }
    for (int i = 0; bits <= 8 && i < 1 << bits; ++i) {
      bytes.insert(bytes.end(), {static_cast<std::uint8_t>(i), 7, static_cast<std::uint8_t>(200 - i), 0});
    }
    for (int i = 0; i < 25 * (31 * bits + 31) / 32 * 4; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 37));
    Image memory;
    ASSERT_TRUE(decode_region(bytes, {}, memory).ok()) << int{bits};
    fuzz(bytes, 14U + bits);
  }
}

// Palettes and run-length encoding, which the encoder above does not write.
TEST(DecodeFuzz, RunLengthBmp) {
  Bytes bytes{'B', 'M', 0, 0, 0, 0,  0, 0, 0, 0, 118, 0, 0, 0, 40, 0, 0,
              0,   32,  0, 0, 0, 24, 0, 0, 0, 1, 0,   4, 0, 2, 0,  0, 0};
  bytes.resize(54);
  for (int i = 0; i < 16; ++i)
    bytes.insert(bytes.end(), {static_cast<std::uint8_t>(i * 16), 7, static_cast<std::uint8_t>(i), 0});
  for (int y = 0; y < 24; ++y) bytes.insert(bytes.end(), {20, 0x12, 0, 5, 0x34, 0x56, 0x70, 0, 3, 0x99, 0, 0});
  bytes.insert(bytes.end(), {0, 1});
  Image memory;
  ASSERT_TRUE(decode_region(bytes, {}, memory).ok());
  fuzz(bytes, 6);
}

}  // namespace
}  // namespace lockstep::data
