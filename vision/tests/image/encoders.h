// Pictures to decode, encoded with the libraries of their formats.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/image/image.h"

namespace lockstep::test {

using data::Image;

// Smooth areas, an edge and noise; the same for the same arguments.
Image make_picture(int width, int height, std::uint32_t seed = 1);

struct JpegOptions {
  int horizontal_sampling = 2;  // luma samples for each chroma sample: 2 and 2 is the common 4:2:0
  int vertical_sampling = 2;
  bool progressive = false;
  int restart_interval = 0;
  int quality = 90;
  int height = 0;      // the rows repeat up to this height; 0: each once
  int components = 3;  // 3: RGB; 1: grey, from the first channel; 4: CMYK, from the four bytes of a pixel
};
std::vector<std::uint8_t> encode_jpeg(const Image& image, const JpegOptions& options = {});
// The JPEG with an EXIF segment that has this orientation.
std::vector<std::uint8_t> with_orientation(const std::vector<std::uint8_t>& jpeg, int orientation);

struct PngOptions {
  int color_type = 2;  // as in the PNG format: 0 grey, 2 RGB, 6 RGBA
  int bits = 8;        // 8, or 16 with equal bytes
  bool interlaced = false;
};
std::vector<std::uint8_t> encode_png(const Image& image, const PngOptions& options = {});
std::vector<std::uint8_t> encode_webp(const Image& image);
std::vector<std::uint8_t> encode_bmp(const Image& image);
// RGB in one strip, which comes last, uncompressed.
std::vector<std::uint8_t> encode_tiff(const Image& image);
// The TIFF of encode_tiff with another compression, colour space (photometric interpretation) and strip.
std::vector<std::uint8_t> with_strip(std::vector<std::uint8_t> tiff, std::uint8_t compression, std::uint8_t colors,
                                     const std::vector<std::uint8_t>& strip);

}  // namespace lockstep::test
