#include "image/encode_png.h"

#include <fmt/format.h>
#include <png.h>

namespace lockstep::data {

Result<std::vector<std::uint8_t>> encode_png(const Image& image) {
  if (image.empty()) return Status(ErrorCode::kInvalidArgument, "cannot make a PNG of a picture without pixels");
  const std::vector<std::uint8_t> pixels = packed_bytes(image);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width());
  png.height = static_cast<png_uint_32>(image.height());
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::vector<std::uint8_t> encoded;
  bool done = png_image_write_get_memory_size(png, size, 0, pixels.data(), 0, nullptr) != 0;
  if (done) {
    encoded.resize(size);
    done = png_image_write_to_memory(&png, encoded.data(), &size, 0, pixels.data(), 0, nullptr) != 0;
  }
  if (!done) return Status(ErrorCode::kIo, fmt::format("cannot make a PNG: {}", png.message));
  encoded.resize(size);
  return encoded;
}

}  // namespace lockstep::data
