#include "image/color.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/fixed_point.h"

namespace lockstep::data {
namespace {

using Histogram = std::array<std::int64_t, 256>;

// Of R, G and B. Even and odd pixels count apart: equal neighbours would wait for one another's sum.
std::array<Histogram, 3> histograms_of(const View& picture) {
  std::array<std::array<Histogram, 3>, 2> counts{};
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* pixel = picture.row(y);
    for (int x = 0; x < picture.width; ++x, pixel += 4) {
      auto& histograms = counts[static_cast<std::size_t>(x) % 2];
      for (std::size_t c = 0; c < 3; ++c) ++histograms[c][pixel[c]];
    }
  }
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < 256; ++i) counts[0][c][i] += counts[1][c][i];
  }
  return counts[0];
}

Lookup identity() {
  Lookup lookup;
  for (int i = 0; i < 256; ++i) lookup[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
  return lookup;
}

// PIL's blend of one value: from `first` towards `second`, or beyond it; limited to 0..255.
std::uint8_t blended(int first, int second, float factor) {
  const float value = static_cast<float>(first) + factor * static_cast<float>(second - first);
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

Lookup blend_lookup(int first, float factor) {
  Lookup lookup;
  for (int i = 0; i < 256; ++i) {
    lookup[static_cast<std::size_t>(i)] = factor == 1.0F ? static_cast<std::uint8_t>(i) : blended(first, i, factor);
  }
  return lookup;
}

std::vector<std::uint8_t>& row_scratch(const View& picture) {
  thread_local std::vector<std::uint8_t> row;
  row.resize(static_cast<std::size_t>(picture.width) * 4 + Image::kSlack);
  return row;
}

struct Hsv {
  std::uint8_t hue, saturation, value;
};

Hsv to_hsv(const std::uint8_t* pixel) {
  const std::uint8_t most = std::max({pixel[0], pixel[1], pixel[2]});
  const std::uint8_t least = std::min({pixel[0], pixel[1], pixel[2]});
  if (least == most) return {0, 0, most};
  const auto range = static_cast<float>(most - least);
  const float saturation = range / static_cast<float>(most);
  const float r = static_cast<float>(most - pixel[0]) / range;
  const float g = static_cast<float>(most - pixel[1]) / range;
  const float b = static_cast<float>(most - pixel[2]) / range;
  float hue = 0;
  if (pixel[0] == most) {
    hue = b - g;
  } else if (pixel[1] == most) {
    hue = static_cast<float>(2.0 + r - b);
  } else {
    hue = static_cast<float>(4.0 + g - r);
  }
  // The fraction of (turn + 1), so that negative hues wrap around.
  const double turn = hue / 6.0 + 1.0;
  hue = static_cast<float>(turn - std::floor(turn));
  return {static_cast<std::uint8_t>(std::clamp(static_cast<int>(hue * 255.0), 0, 255)),
          static_cast<std::uint8_t>(std::clamp(static_cast<int>(saturation * 255.0), 0, 255)), most};
}

std::uint8_t rounded(double value) {
  return static_cast<std::uint8_t>(
      std::clamp(static_cast<int>(value + 0.5), 0, 255));  // NOLINT(bugprone-incorrect-roundings): as PIL
}

void to_rgb(const Hsv& color, std::uint8_t* out) {
  const std::uint8_t v = color.value;
  if (color.saturation == 0) {
    std::memset(out, v, 3);
    return;
  }
  const double sixths = static_cast<float>(color.hue) * 6.0 / 255.0;
  const int sector = static_cast<int>(sixths);
  const auto f = static_cast<float>(sixths - static_cast<float>(sector));
  const auto s = static_cast<float>(static_cast<float>(color.saturation) / 255.0);
  const std::uint8_t p = rounded(static_cast<float>(v) * (1.0 - s));
  const std::uint8_t q = rounded(static_cast<float>(v) * (1.0 - s * f));
  const std::uint8_t t = rounded(static_cast<float>(v) * (1.0 - s * (1.0 - f)));
  const std::uint8_t values[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
  std::memcpy(out, values[sector % 6], 3);
}

}  // namespace

Lookup brightness_lookup(float factor) {
  return blend_lookup(0, factor);
}

Lookup invert_lookup() {
  Lookup lookup = identity();
  std::reverse(lookup.begin(), lookup.end());
  return lookup;
}

Lookup posterize_lookup(int bits) {
  Lookup lookup = identity();
  for (std::uint8_t& value : lookup) value = static_cast<std::uint8_t>(value & ~((1 << (8 - bits)) - 1));
  return lookup;
}

Lookup solarize_lookup(double threshold) {
  Lookup lookup = identity();
  for (std::uint8_t& value : lookup) value = value < threshold ? value : static_cast<std::uint8_t>(255 - value);
  return lookup;
}

Lookup contrast_lookup(const View& picture, float factor) {
  if (factor == 1.0F) return identity();
  std::vector<std::uint8_t>& grey = row_scratch(picture);
  std::int64_t sum = 0;
  for (int y = 0; y < picture.height; ++y) {
    image_kernels().to_grey(picture.row(y), picture.width, grey.data());
    for (int x = 0; x < picture.width; ++x) sum += grey[std::size_t{4} * static_cast<std::size_t>(x)];
  }
  const double mean = static_cast<double>(sum) / (static_cast<double>(picture.width) * picture.height);
  return blend_lookup(static_cast<int>(mean + 0.5), factor);  // NOLINT(bugprone-incorrect-roundings): as PIL
}

Lookups autocontrast_lookups(const View& picture) {
  std::uint8_t low[4] = {255, 255, 255, 255};
  std::uint8_t high[4] = {0, 0, 0, 0};
  for (int y = 0; y < picture.height; ++y) image_kernels().extremes(picture.row(y), picture.width, low, high);
  Lookups lookups;
  for (std::size_t c = 0; c < 3; ++c) {
    lookups[c] = identity();
    if (high[c] <= low[c]) continue;
    const double scale = 255.0 / (high[c] - low[c]);
    const double offset = -low[c] * scale;
    for (std::size_t i = 0; i < 256; ++i) {
      lookups[c][i] =
          static_cast<std::uint8_t>(std::clamp(static_cast<int>(static_cast<double>(i) * scale + offset), 0, 255));
    }
  }
  return lookups;
}

Lookup equalize_lookup(const Histogram& histogram, std::int64_t pixels) {
  Lookup lookup = identity();
  std::int64_t last = 0;
  int used = 0;
  for (const std::int64_t count : histogram) {
    if (count == 0) continue;
    last = count;
    ++used;
  }
  const std::int64_t step = (pixels - last) / 255;
  if (used <= 1 || step == 0) return lookup;
  std::int64_t sum = step / 2;
  for (std::size_t i = 0; i < 256; ++i) {
    lookup[i] = static_cast<std::uint8_t>(std::min<std::int64_t>(sum / step, 255));
    sum += histogram[i];
  }
  return lookup;
}

Lookups equalize_lookups(const View& picture) {
  const std::array<Histogram, 3> histograms = histograms_of(picture);
  const std::int64_t pixels = std::int64_t{picture.width} * picture.height;
  return {equalize_lookup(histograms[0], pixels), equalize_lookup(histograms[1], pixels),
          equalize_lookup(histograms[2], pixels)};
}

void apply_lookups(const View& picture, const Lookups& lookups, RowSink& sink) {
  for (int y = 0; y < picture.height; ++y) sink.look_up(y, picture.row(y), picture.width, lookups);
}

void adjust_saturation(const View& picture, float factor, RowSink& sink) {
  std::vector<std::uint8_t>& grey = row_scratch(picture);
  const ImageKernels& kernels = image_kernels();
  if (factor == 1.0F) return copy_rows(picture, sink);
  for (int y = 0; y < picture.height; ++y) {
    kernels.to_grey(picture.row(y), picture.width, grey.data());
    kernels.blend(grey.data(), picture.row(y), factor, factor < 0.0F || factor > 1.0F, std::int64_t{4} * picture.width,
                  sink.begin(y));
    sink.end(y);
  }
}

void adjust_hue(const View& picture, double factor, RowSink& sink) {
  const auto shift = static_cast<std::uint8_t>(static_cast<std::int32_t>(factor * 255));
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* from = picture.row(y);
    std::uint8_t* to = sink.begin(y);
    for (int x = 0; x < picture.width; ++x, from += 4, to += 4) {
      Hsv color = to_hsv(from);
      color.hue = static_cast<std::uint8_t>(color.hue + shift);
      to_rgb(color, to);
      to[3] = 255;
    }
    sink.end(y);
  }
}

void to_grey(const View& picture, RowSink& sink) {
  for (int y = 0; y < picture.height; ++y) {
    image_kernels().to_grey(picture.row(y), picture.width, sink.begin(y));
    sink.end(y);
  }
}

void copy_rows(const View& picture, RowSink& sink) {
  for (int y = 0; y < picture.height; ++y) {
    std::memcpy(sink.begin(y), picture.row(y), static_cast<std::size_t>(picture.width) * Image::kBytesPerPixel);
    sink.end(y);
  }
}

namespace {

// The outermost rows and columns stay unchanged. `out` has room for the row and kSlack bytes.
void smooth_row(const View& picture, int y, std::uint8_t* out) {
  const std::uint8_t* row = picture.row(y);
  const std::ptrdiff_t bytes = std::ptrdiff_t{4} * picture.width;
  if (y == 0 || y == picture.height - 1 || picture.width < 3) {
    std::memcpy(out, row, static_cast<std::size_t>(bytes));
    return;
  }
  image_kernels().smooth(picture.row(y - 1) + 4, row + 4, picture.row(y + 1) + 4, static_cast<int>(bytes) - 8, out + 4);
  std::memcpy(out, row, 4);
  std::memcpy(out + bytes - 4, row + bytes - 4, 4);
}

int source_of(int i, int size, PaddingMode mode) {
  if (i >= 0 && i < size) return i;
  switch (mode) {
    case PaddingMode::kConstant: return -1;
    case PaddingMode::kEdge: return std::clamp(i, 0, size - 1);
    case PaddingMode::kReflect: return mirrored(i, size, false);
    case PaddingMode::kSymmetric: return mirrored(i, size, true);
  }
  return -1;
}

}  // namespace

void adjust_sharpness(const View& picture, float factor, RowSink& sink) {
  if (factor == 1.0F) return copy_rows(picture, sink);
  thread_local std::vector<std::uint8_t> smooth;
  smooth.resize(static_cast<std::size_t>(picture.width) * 4 + Image::kSlack);
  for (int y = 0; y < picture.height; ++y) {
    smooth_row(picture, y, smooth.data());
    image_kernels().blend(smooth.data(), picture.row(y), factor, factor < 0.0F || factor > 1.0F,
                          std::int64_t{4} * picture.width, sink.begin(y));
    sink.end(y);
  }
}

void pad(const View& picture, const PadAmounts& padding, std::array<std::uint8_t, 3> fill, PaddingMode mode,
         RowSink& sink) {
  const int width = picture.width + padding.left + padding.right;
  const int height = picture.height + padding.top + padding.bottom;
  for (int y = 0; y < height; ++y) {
    std::uint8_t* out = sink.begin(y);
    const int from_y = source_of(y - padding.top, picture.height, mode);
    for (int x = 0; x < width; ++x, out += 4) {
      const int from_x = source_of(x - padding.left, picture.width, mode);
      if (from_x < 0 || from_y < 0) {
        fill_pixels(out, 1, fill);
      } else {
        std::memcpy(out, picture.row(from_y) + std::ptrdiff_t{4} * from_x, 4);
      }
    }
    sink.end(y);
  }
}

}  // namespace lockstep::data
