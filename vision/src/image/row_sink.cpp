#include "image/row_sink.h"

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

void RowSink::look_up(int y, const std::uint8_t* pixels, int width, const Lookups& lookups) {
  std::uint8_t* to = begin(y);
  for (int x = 0; x < width; ++x, pixels += 4, to += 4) {
    to[0] = lookups[0][pixels[0]];
    to[1] = lookups[1][pixels[1]];
    to[2] = lookups[2][pixels[2]];
    to[3] = 255;
  }
  end(y);
}

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

float* FloatSink::first_of(int y) const {
  return out_ + std::ptrdiff_t{size_.width} * (mirror_.vertical ? size_.height - 1 - y : y);
}

void FloatSink::look_up(int y, const std::uint8_t* pixels, int width, const Lookups& lookups) {
  if (!has_tables_) {
    std::array<std::uint8_t, std::size_t{4} * 256> entries;  // as pixels: they are converted as pixels are
    for (std::size_t i = 0; i < 256; ++i) {
      for (std::size_t c = 0; c < 4; ++c) entries[4 * i + c] = c < 3 ? lookups[c][i] : std::uint8_t{255};
    }
    float* const planes[3] = {tables_[0].data(), tables_[1].data(), tables_[2].data()};
    image_kernels().to_float(how_, entries.data(), 256, 3, /*reversed=*/false, planes);
    has_tables_ = true;
  }
  const std::ptrdiff_t plane = std::ptrdiff_t{size_.width} * size_.height;
  float* first = first_of(y);
  const std::ptrdiff_t step = mirror_.horizontal ? -4 : 4;
  if (mirror_.horizontal) pixels += 4 * (std::ptrdiff_t{width} - 1);
  if (channels_ == 1) {
    for (int x = 0; x < width; ++x, pixels += step) first[x] = tables_[0][pixels[0]];
    return;
  }
  float* second = first + plane;
  float* third = second + plane;
  for (int x = 0; x < width; ++x, pixels += step) {
    first[x] = tables_[0][pixels[0]];
    second[x] = tables_[1][pixels[1]];
    third[x] = tables_[2][pixels[2]];
  }
}

void FloatSink::end(int y) {
  const std::ptrdiff_t plane = std::ptrdiff_t{size_.width} * size_.height;
  float* first = first_of(y);
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
