#include "data/image/encoders.h"

#include <png.h>
#include <webp/encode.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>

// After cstdio, which it needs.
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
  info.input_components = 4;
  info.in_color_space = JCS_EXT_RGBX;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  info.comp_info[0].h_samp_factor = options.horizontal_sampling;
  info.comp_info[0].v_samp_factor = options.vertical_sampling;
  info.restart_interval = static_cast<unsigned>(options.restart_interval);
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<std::uint8_t*>(image.row(y % image.height()));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<std::uint8_t> bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

std::vector<std::uint8_t> encode_png(const Image& image) {
  png_image description{};
  description.version = PNG_IMAGE_VERSION;
  description.width = static_cast<png_uint_32>(image.width());
  description.height = static_cast<png_uint_32>(image.height());
  description.format = PNG_FORMAT_RGB;
  const std::vector<std::uint8_t> pixels = data::packed_bytes(image);
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&description, nullptr, &size, 0, pixels.data(), 0, nullptr);
  std::vector<std::uint8_t> bytes(size);
  if (png_image_write_to_memory(&description, bytes.data(), &size, 0, pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error("cannot write a PNG");
  }
  bytes.resize(size);
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

}  // namespace lockstep::test
