#include "lockstep/image/image.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/arithmetic.h"

namespace lockstep::data {

Image::Image(const Image& other) {
  *this = other;
}

Image& Image::operator=(const Image& other) {
  if (this == &other) return *this;
  reset(other.width_, other.height_);
  if (!empty()) std::memcpy(bytes_.get(), other.bytes_.get(), row_bytes() * static_cast<std::size_t>(height_));
  return *this;
}

void Image::reset(int width, int height) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  const std::size_t needed = round_up(pixels * kBytesPerPixel + kSlack, kAlignment);
  if (needed > capacity_) {
    bytes_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, needed)));
    capacity_ = bytes_ ? needed : 0;
    if (!bytes_) throw std::bad_alloc();
    std::memset(bytes_.get() + needed - kAlignment, 0, kAlignment);
  }
  width_ = width;
  height_ = height;
}

void Image::swap(Image& other) noexcept {
  std::swap(width_, other.width_);
  std::swap(height_, other.height_);
  std::swap(capacity_, other.capacity_);
  bytes_.swap(other.bytes_);
}

std::vector<std::uint8_t> packed_bytes(const Image& image) {
  constexpr std::size_t kChannels = 3;
  const std::size_t pixels = static_cast<std::size_t>(image.width()) * static_cast<std::size_t>(image.height());
  std::vector<std::uint8_t> bytes(pixels * kChannels);
  const std::uint8_t* from = image.empty() ? nullptr : image.row(0);
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < kChannels; ++c) bytes[i * kChannels + c] = from[i * Image::kBytesPerPixel + c];
  }
  return bytes;
}

Image image_from_packed(std::span<const std::uint8_t> bytes, ImageSize size, int channels) {
  Image image(size.width, size.height);
  const auto step = static_cast<std::size_t>(channels);
  for (std::size_t i = 0; i < bytes.size() / step; ++i) {
    std::uint8_t* to = image.row(0) + i * Image::kBytesPerPixel;
    for (std::size_t c = 0; c < 3; ++c) to[c] = bytes[i * step + std::min(c, step - 1)];
    to[3] = 255;
  }
  return image;
}

}  // namespace lockstep::data
