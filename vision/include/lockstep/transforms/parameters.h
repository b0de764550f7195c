// The types of the transforms' parameters: sizes, ranges, colours.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "lockstep/image/modes.h"

namespace lockstep::data {

// The colour of pixels outside of the picture: a grey level, or R, G, B.
struct Fill {
  std::array<std::uint8_t, 3> color{0, 0, 0};
  Fill() = default;
  Fill(std::uint8_t grey) : color{grey, grey, grey} {}  // NOLINT(google-explicit-constructor)
  Fill(std::uint8_t r, std::uint8_t g, std::uint8_t b) : color{r, g, b} {}
  bool operator==(const Fill&) const = default;
};

// {224}: a square; {height, width} otherwise.
struct OutputSize {
  int height;
  int width;
  OutputSize(int side) : height(side), width(side) {}  // NOLINT(google-explicit-constructor)
  OutputSize(int h, int w) : height(h), width(w) {}
};

// {5}: along both axes; {x, y} otherwise: torchvision gives the sizes of kernels in this order.
struct KernelSize {
  int x;
  int y;
  KernelSize(int both) : x(both), y(both) {}  // NOLINT(google-explicit-constructor)
  KernelSize(int along_x, int along_y) : x(along_x), y(along_y) {}
};

// {45}: from -45 to 45; {low, high} otherwise. Degrees. As in torchvision a positive angle turns RandomRotation's
// pictures counter-clockwise, RandomAffine's clockwise.
struct AngleRange {
  double low;
  double high;
  AngleRange(double most) : low(-most), high(most) {}  // NOLINT(google-explicit-constructor)
  AngleRange(double from, double to) : low(from), high(to) {}
};

struct Interval01 {
  double low;
  double high;
};

struct Point {
  double x;
  double y;
};

// {4}: on all sides; {x, y}: left and right, top and bottom; {left, top, right, bottom}. Negative numbers crop.
struct Padding {
  int left;
  int top;
  int right;
  int bottom;
  Padding(int all) : left(all), top(all), right(all), bottom(all) {}  // NOLINT(google-explicit-constructor)
  Padding(int x, int y) : left(x), top(y), right(x), bottom(y) {}
  Padding(int l, int t, int r, int b) : left(l), top(t), right(r), bottom(b) {}
};

// {0.4}: a factor from 0.6 to 1.4 (for hue, -0.4 to 0.4); {low, high} otherwise.
struct Jitter {
  std::optional<double> amount = 0.0;
  double low = 0.0;
  double high = 0.0;
  Jitter() = default;
  Jitter(double most) : amount(most) {}  // NOLINT(google-explicit-constructor)
  Jitter(double from, double to) : amount(std::nullopt), low(from), high(to) {}
};

}  // namespace lockstep::data
