// A picture in memory: rows of 4-byte pixels (R, G, B and an unused byte), top row first, no padding between rows. Four
// bytes, because vector instructions move such pixels as a whole. A grey picture has the same value in R, G and B: the
// transforms decide how many channels a sample has, not the file.
//
// Torch-free. A value: copies are deep, moves are cheap. As thread-safe as a std::vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::data {

struct ImageSize {
  int width = 0;
  int height = 0;
  bool operator==(const ImageSize&) const = default;
};

class Image {
 public:
  static constexpr int kBytesPerPixel = 4;
  // The number of bytes after the last pixel that may be read and overwritten. These bytes have no meaning.
  static constexpr std::size_t kSlack = 64;

  Image() = default;
  // The pixels are not initialized.
  Image(int width, int height) { reset(width, height); }
  Image(const Image& other);
  Image& operator=(const Image& other);
  Image(Image&& other) noexcept { swap(other); }
  Image& operator=(Image&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Image() = default;

  // Changes the size; the pixels are undefined afterwards. Allocates only if the memory is too small. Throws
  // std::bad_alloc.
  void reset(int width, int height);
  void swap(Image& other) noexcept;

  int width() const { return width_; }
  int height() const { return height_; }
  ImageSize size() const { return {width_, height_}; }
  bool empty() const { return width_ == 0 || height_ == 0; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * kBytesPerPixel; }

  std::uint8_t* row(int y) { return bytes_.get() + static_cast<std::size_t>(y) * row_bytes(); }
  const std::uint8_t* row(int y) const { return bytes_.get() + static_cast<std::size_t>(y) * row_bytes(); }
  // The three bytes of one pixel.
  std::span<const std::uint8_t, 3> pixel(int x, int y) const {
    return std::span<const std::uint8_t, 3>(row(y) + std::size_t{kBytesPerPixel} * static_cast<std::size_t>(x), 3);
  }

 private:
  struct Free {
    void operator()(std::uint8_t* bytes) const { std::free(bytes); }
  };
  int width_ = 0;
  int height_ = 0;
  std::size_t capacity_ = 0;
  std::unique_ptr<std::uint8_t[], Free> bytes_;
};

// Convert a picture to height x width x 3 bytes without gaps, the layout of numpy and of most image libraries, and
// back. With `channels` 1 the bytes are grey levels.
std::vector<std::uint8_t> packed_bytes(const Image& image);
Image image_from_packed(std::span<const std::uint8_t> bytes, ImageSize size, int channels = 3);

}  // namespace lockstep::data
