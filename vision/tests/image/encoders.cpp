#include "image/encoders.h"

#include <png.h>
#include <webp/encode.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

// cstdio must come first.
#include <jpeglib.h>

namespace lockstep::test {

Image make_picture(int width, int height, std::uint32_t seed) {
  Image image(width, height);
  std::mt19937 random(seed);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      std::uint8_t* pixel = image.row(y) + std::ptrdiff_t{4} * x;
      for (int c = 0; c < 3; ++c) {
        const double wave = std::sin(x / (4.0 + 7 * c) + seed) * std::cos(y / (6.0 + 3 * c));
        const double edge = x > width / 3 && y > height / 2 ? 40.0 * (c - 1) : 0.0;
        pixel[c] = static_cast<std::uint8_t>(120 + 70 * wave + edge + random() % 16);
      }
      pixel[3] = 255;
    }
  }
  return image;
}

std::vector<std::uint8_t> encode_jpeg(const Image& image, const JpegOptions& options) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(image.width());
  const int height = options.height == 0 ? image.height() : options.height;
  info.image_height = static_cast<JDIMENSION>(height);
  const bool grey = options.components == 1;
  info.input_components = grey ? 1 : 4;
  info.in_color_space = grey ? JCS_GRAYSCALE : options.components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  info.comp_info[0].h_samp_factor = options.horizontal_sampling;
  info.comp_info[0].v_samp_factor = options.vertical_sampling;
  info.restart_interval = static_cast<unsigned>(options.restart_interval);
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<std::uint8_t*>(image.row(y % image.height()));
    std::vector<std::uint8_t> levels;
    if (grey) {
      for (int x = 0; x < image.width(); ++x) levels.push_back(image.pixel(x, y % image.height())[0]);
      row = levels.data();
    }
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<std::uint8_t> bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

std::vector<std::uint8_t> with_orientation(const std::vector<std::uint8_t>& jpeg, int orientation) {
  // APP1: "Exif", a TIFF header, one entry.
  const std::array<std::uint8_t, 36> segment{
      0xff, 0xe1, 0, 34, 'E', 'x',  'i',  'f', 0, 0, 'M', 'M', 0, 42, 0,
      0,    0,    8, 0,  1,   0x01, 0x12, 0,   3, 0, 0,   0,   1, 0,  static_cast<std::uint8_t>(orientation),
      0,    0,    0, 0,  0,   0};
  std::vector<std::uint8_t> bytes = jpeg;
  bytes.insert(bytes.begin() + 2, segment.begin(), segment.end());
  return bytes;
}

std::vector<std::uint8_t> encode_png(const Image& image, const PngOptions& options) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::vector<std::uint8_t> bytes;
  const auto append = [](png_structp writer, png_bytep from, std::size_t count) {
    auto* to = static_cast<std::vector<std::uint8_t>*>(png_get_io_ptr(writer));
    to->insert(to->end(), from, from + count);
  };
  png_set_write_fn(png, &bytes, append, [](png_structp /*unused*/) {});
  png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width()), static_cast<png_uint_32>(image.height()),
               options.bits, options.color_type, options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  const std::size_t channels = options.color_type == 0 ? 1 : options.color_type == 2 ? 3 : 4;
  const auto copies = static_cast<std::size_t>(options.bits / 8);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.width()) * channels * copies);
  for (int pass = png_set_interlace_handling(png); pass > 0; --pass) {
    for (int y = 0; y < image.height(); ++y) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::size_t sample = i / copies;
        row[i] = image.row(y)[sample / channels * Image::kBytesPerPixel + sample % channels];
      }
      png_write_row(png, row.data());
    }
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

std::vector<std::uint8_t> encode_webp(const Image& image) {
  std::uint8_t* memory = nullptr;
  const std::vector<std::uint8_t> pixels = data::packed_bytes(image);
  const std::size_t size =
      WebPEncodeRGB(pixels.data(), image.width(), image.height(), image.width() * 3, 90.0F, &memory);
  std::vector<std::uint8_t> bytes(memory, memory + size);
  WebPFree(memory);
  return bytes;
}

std::vector<std::uint8_t> encode_bmp(const Image& image) {
  std::vector<std::uint8_t> bytes;
  const auto number = [&](std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  const std::uint32_t row = (static_cast<std::uint32_t>(image.width()) * 3 + 3) / 4 * 4;
  bytes = {'B', 'M'};
  number(54 + row * static_cast<std::uint32_t>(image.height()), 4);
  number(0, 4);
  number(54, 4);
  number(40, 4);
  number(static_cast<std::uint32_t>(image.width()), 4);
  number(static_cast<std::uint32_t>(image.height()), 4);
  number(1, 2);
  number(24, 2);
  for (int i = 0; i < 6; ++i) number(0, 4);
  for (int y = image.height() - 1; y >= 0; --y) {
    for (int x = 0; x < image.width(); ++x) {
      const auto pixel = image.pixel(x, y);
      bytes.insert(bytes.end(), {pixel[2], pixel[1], pixel[0]});
    }
    while ((bytes.size() - 54) % 4 != 0) bytes.push_back(0);
  }
  return bytes;
}

std::vector<std::uint8_t> encode_tiff(const Image& image) {
  std::vector<std::uint8_t> bytes{'I', 'I', 42, 0};
  const auto number = [&](std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  const auto entry = [&](std::uint32_t tag, std::uint32_t type, std::uint32_t count, std::uint32_t value) {
    number(tag, 2);
    number(type, 2);
    number(count, 4);
    number(value, 4);
  };
  constexpr std::uint32_t kShort = 3;
  constexpr std::uint32_t kLong = 4;
  constexpr std::uint32_t kBitsAt = 8 + 2 + 9 * 12 + 4;  // after the directory
  const auto width = static_cast<std::uint32_t>(image.width());
  const auto height = static_cast<std::uint32_t>(image.height());
  number(8, 4);
  number(9, 2);
  entry(256, kLong, 1, width);
  entry(257, kLong, 1, height);
  entry(258, kShort, 3, kBitsAt);
  entry(259, kShort, 1, 1);
  entry(262, kShort, 1, 2);
  entry(273, kLong, 1, kBitsAt + 6);
  entry(277, kShort, 1, 3);
  entry(278, kLong, 1, height);
  entry(279, kLong, 1, width * height * 3);
  number(0, 4);
  for (int i = 0; i < 3; ++i) number(8, 2);
  const std::vector<std::uint8_t> pixels = data::packed_bytes(image);
  bytes.insert(bytes.end(), pixels.begin(), pixels.end());
  return bytes;
}

std::vector<std::uint8_t> with_strip(std::vector<std::uint8_t> tiff, std::uint8_t compression, std::uint8_t colors,
                                     const std::vector<std::uint8_t>& strip) {
  constexpr auto value_at = [](std::size_t entry) { return 8 + 2 + entry * 12 + 8; };
  tiff[value_at(3)] = compression;
  tiff[value_at(4)] = colors;
  const auto size = static_cast<std::uint32_t>(strip.size());
  std::memcpy(tiff.data() + value_at(8), &size, sizeof size);
  const std::size_t strip_at = tiff[value_at(5)];
  tiff.resize(strip_at);
  tiff.insert(tiff.end(), strip.begin(), strip.end());
  return tiff;
}

}  // namespace lockstep::test
