#include "picture_tools/thumbnail.h"

#include <fmt/format.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "image/memory_errors.h"
#include "image/resample.h"

namespace lockstep::data {
namespace {

struct ErrorHandler {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> message;
};

void on_error(j_common_ptr codec) {
  auto* handler = reinterpret_cast<ErrorHandler*>(codec->err);
  codec->err->format_message(codec, handler->message.data());
  std::longjmp(handler->back, 1);
}

bool is_grey(const Image& image) {
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      const auto pixel = image.pixel(x, y);
      if (pixel[0] != pixel[1] || pixel[1] != pixel[2]) return false;
    }
  }
  return true;
}

// An EXIF segment with one entry: big-endian TIFF, tag 0x0112 (orientation), a short.
void write_orientation(jpeg_compress_struct& codec, int orientation) {
  const std::array<std::uint8_t, 32> exif{
      'E', 'x', 'i', 'f', 0,    0, 'M', 'M', 0, 42, 0, 0, 0,
      8,   0,   1,   1,   0x12, 0, 3,   0,   0, 0,  1, 0, static_cast<std::uint8_t>(orientation),
      0,   0,   0,   0,   0,    0};
  jpeg_write_marker(&codec, JPEG_APP0 + 1, exif.data(), exif.size());
}

// No object with a destructor may be alive between setjmp and longjmp. False: an error, in handler.message.
bool compress(const Image& image, int quality, int orientation, std::uint8_t* row_buffer, ErrorHandler& handler,
              unsigned char** out, unsigned long* out_bytes) {
  jpeg_compress_struct codec;
  codec.err = jpeg_std_error(&handler.manager);
  handler.manager.error_exit = on_error;
  if (setjmp(handler.back) != 0) {
    jpeg_destroy_compress(&codec);
    return false;
  }
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, out, out_bytes);
  const bool grey = is_grey(image);
  codec.image_width = static_cast<JDIMENSION>(image.width());
  codec.image_height = static_cast<JDIMENSION>(image.height());
  codec.input_components = grey ? 1 : Image::kBytesPerPixel;
  codec.in_color_space = grey ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  codec.optimize_coding = TRUE;  // slower, but a few per cent smaller: packs are made once
  jpeg_start_compress(&codec, TRUE);
  if (orientation != 1) write_orientation(codec, orientation);
  for (int y = 0; y < image.height(); ++y) {
    auto* row = const_cast<JSAMPROW>(image.row(y));
    if (grey) {
      const auto width = static_cast<std::size_t>(image.width());
      for (std::size_t x = 0; x < width; ++x) row_buffer[x] = image.row(y)[x * Image::kBytesPerPixel];
      row = row_buffer;
    }
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  return true;
}

}  // namespace

Result<std::vector<std::uint8_t>> encode_jpeg(const Image& image, int quality, int orientation) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.width()));
  ErrorHandler handler{};
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  const bool done = compress(image, quality, orientation, row.data(), handler, &memory, &bytes);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(memory, &std::free);
  if (done) return std::vector<std::uint8_t>(memory, memory + bytes);
  return Status(ErrorCode::kInvalidArgument, fmt::format("cannot make a JPEG of {} x {} pixels: {}", image.width(),
                                                         image.height(), handler.message.data()));
}

namespace {

// So that the longer side is `side`.
Image scaled_to(const Image& picture, int side) {
  const int longer = std::max(picture.width(), picture.height());
  const auto scaled = [&](int own) {
    return static_cast<int>(std::max<std::int64_t>(1, std::int64_t{own} * side / longer));
  };
  return resized(picture, {scaled(picture.width()), scaled(picture.height())}, Interpolation::kBilinear);
}

}  // namespace

Result<std::vector<std::uint8_t>> thumbnail(const Image& picture, int longest_side) {
  constexpr int kQuality = 85;
  if (picture.empty()) return Status(ErrorCode::kInvalidArgument, "a picture without pixels");
  return or_out_of_memory("a thumbnail", [&]() -> Result<std::vector<std::uint8_t>> {
    if (std::max(picture.width(), picture.height()) <= longest_side) return encode_jpeg(picture, kQuality);
    return encode_jpeg(scaled_to(picture, longest_side), kQuality);
  });
}

}  // namespace lockstep::data
