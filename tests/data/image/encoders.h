// Pictures to decode, written by the formats' own libraries.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/image/image.h"

namespace lockstep::test {

using data::Image;

// Smooth areas, an edge and noise; the same for the same arguments.
Image make_picture(int width, int height, std::uint32_t seed = 1);

struct JpegOptions {
  int horizontal_sampling = 2;  // of luma, over chroma: 2 and 2 is the common 4:2:0
  int vertical_sampling = 2;
  bool progressive = false;
  int restart_interval = 0;
  int height = 0;      // the rows repeat until there are so many; 0: each once
  int components = 3;  // or 1, grey: the first channel; or 4, CMYK: the picture's four bytes
};
std::vector<std::uint8_t> encode_jpeg(const Image& image, const JpegOptions& options = {});
// With an EXIF segment that says so.
std::vector<std::uint8_t> with_orientation(const std::vector<std::uint8_t>& jpeg, int orientation);

struct PngOptions {
  int color_type = 2;  // PNG's own: 0 grey, 2 RGB, 6 RGBA
  int bits = 8;        // or 16: both bytes alike
  bool interlaced = false;
};
std::vector<std::uint8_t> encode_png(const Image& image, const PngOptions& options = {});
std::vector<std::uint8_t> encode_webp(const Image& image);
std::vector<std::uint8_t> encode_bmp(const Image& image);

}  // namespace lockstep::test
