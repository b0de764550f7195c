// Rectangles, and views of pictures and of parts of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/image/image.h"

namespace lockstep::data {

struct Box {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;

  bool empty() const { return width <= 0 || height <= 0; }
  int right() const { return left + width; }
  int bottom() const { return top + height; }
  bool operator==(const Box&) const = default;
};

// Pixels (R, G, B and an unused byte) without ownership.
struct View {
  const std::uint8_t* pixels = nullptr;
  std::size_t stride = 0;  // bytes from one row to the next
  int width = 0;
  int height = 0;

  View() = default;
  View(const Image& image)  // NOLINT(google-explicit-constructor)
      : pixels(image.empty() ? nullptr : image.row(0)),
        stride(image.row_bytes()),
        width(image.width()),
        height(image.height()) {}

  const std::uint8_t* row(int y) const { return pixels + static_cast<std::size_t>(y) * stride; }
  // `box` must be inside.
  View part(const Box& box) const {
    View view = *this;
    view.pixels = row(box.top) + std::size_t{Image::kBytesPerPixel} * static_cast<std::size_t>(box.left);
    view.width = box.width;
    view.height = box.height;
    return view;
  }
};

}  // namespace lockstep::data
