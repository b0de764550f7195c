#include "data/image/row_sink.h"

#include <cstring>

namespace lockstep::data {
namespace {

// One row for each thread: a thread uses one sink at a time.
std::vector<std::uint8_t>& row_memory(ImageSize size) {
  thread_local std::vector<std::uint8_t> row;
  const std::size_t needed = static_cast<std::size_t>(size.width) * Image::kBytesPerPixel + 2 * Image::kSlack;
  if (row.size() < needed) row.resize(needed);
  return row;
}

}  // namespace

ImageSink::ImageSink(Image& image, ImageSize size, Mirror mirror)
    : image_(image), mirror_(mirror), row_(row_memory(size)) {
  image.reset(size.width, size.height);
}

void ImageSink::end(int y) {
  std::uint8_t* to = image_.row(mirror_.vertical ? image_.height() - 1 - y : y);
  if (!mirror_.horizontal) {
    std::memcpy(to, row_.data(), image_.row_bytes());
    return;
  }
  const std::uint8_t* from = row_.data() + image_.row_bytes();
  for (int x = 0; x < image_.width(); ++x) std::memcpy(to + std::ptrdiff_t{4} * x, from -= 4, 4);
}

FloatSink::FloatSink(float* out, ImageSize size, int channels, const ToFloat& how, Mirror mirror)
    : out_(out), size_(size), channels_(channels), how_(how), mirror_(mirror), row_(row_memory(size)) {}

void FloatSink::end(int y) {
  const std::ptrdiff_t plane = std::ptrdiff_t{size_.width} * size_.height;
  float* first = out_ + std::ptrdiff_t{size_.width} * (mirror_.vertical ? size_.height - 1 - y : y);
  float* const planes[3] = {first, first + plane, first + 2 * plane};
  image_kernels().to_float(how_, row_.data(), size_.width, channels_, mirror_.horizontal, planes);
}

ByteSink::ByteSink(std::uint8_t* out, ImageSize size, int channels, Mirror mirror)
    : out_(out), size_(size), channels_(channels), mirror_(mirror), row_(row_memory(size)) {}

void ByteSink::end(int y) {
  const std::ptrdiff_t plane = std::ptrdiff_t{size_.width} * size_.height;
  std::uint8_t* first = out_ + std::ptrdiff_t{size_.width} * (mirror_.vertical ? size_.height - 1 - y : y);
  for (int x = 0; x < size_.width; ++x) {
    const std::uint8_t* pixel = row_.data() + std::ptrdiff_t{4} * (mirror_.horizontal ? size_.width - 1 - x : x);
    for (int c = 0; c < channels_; ++c) first[c * plane + x] = pixel[c];
  }
}

}  // namespace lockstep::data
