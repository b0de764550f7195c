// Netpbm's PBM, PGM and PPM, as text (P1 to P3) and as bytes (P4 to P6), with PIL's arithmetic: levels are scaled to 0
// to 255. Grey pictures of more than 8 bits are limited to 255 instead, as in PIL's conversion to RGB.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

struct NetpbmHeader {
  int kind = 0;  // 1 to 6
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::int64_t most = 1;  // the highest level: white
  std::size_t pixels_at = 0;

  bool is_text() const { return kind <= 3; }
  bool is_bits() const { return kind == 1 || kind == 4; }
  int channels() const { return kind % 3 == 0 ? 3 : 1; }
};

Status cut_short(std::size_t size) {
  return {ErrorCode::kCorrupt, fmt::format("the file is cut short, after {} bytes", size)};
}

bool is_space(std::uint8_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Reads numbers in text, and skips comments, which go from # to the end of a line.
class TextReader {
 public:
  TextReader(std::span<const std::uint8_t> bytes, std::size_t at) : bytes_(bytes), at_(at) {}

  std::size_t at() const { return at_; }

  // Also takes one character of white space after the number.
  Result<std::int64_t> number() {
    std::int64_t value = 0;
    for (int digits = 0; digits <= kMostDigits; ++digits) {
      const int c = digits == 0 ? next_visible() : next();
      if (c < 0 && digits == 0) return cut_short(bytes_.size());
      if (c < 0 || (is_space(static_cast<std::uint8_t>(c)) && digits > 0)) return value;
      if (c < '0' || c > '9') break;
      value = value * 10 + (c - '0');
    }
    return Status(ErrorCode::kCorrupt,
                  fmt::format("expected a number of at most {} digits before byte {}", kMostDigits, at_));
  }

  // One-bit levels need no space between them.
  Result<std::int64_t> bit() {
    const int c = next_visible();
    if (c < 0) return cut_short(bytes_.size());
    if (c == '0' || c == '1') return c - '0';
    return Status(ErrorCode::kCorrupt, fmt::format("expected 0 or 1 before byte {}", at_));
  }

 private:
  static constexpr int kMostDigits = 10;

  // The next character; -1 at the end.
  int next() {
    while (at_ < bytes_.size() && bytes_[at_] == '#') {
      while (at_ < bytes_.size() && bytes_[at_] != '\n' && bytes_[at_] != '\r') ++at_;
      at_ = std::min(at_ + 1, bytes_.size());
    }
    return at_ < bytes_.size() ? bytes_[at_++] : -1;
  }
  int next_visible() {
    int c = next();
    while (c >= 0 && is_space(static_cast<std::uint8_t>(c))) c = next();
    return c;
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t at_;
};

Result<NetpbmHeader> read_netpbm_header(std::span<const std::uint8_t> bytes) {
  constexpr std::int64_t kMostLevels = 65535;
  NetpbmHeader header{.kind = bytes[1] - '0'};
  TextReader in(bytes, 3);
  LOCKSTEP_ASSIGN_OR_RETURN(header.width, in.number());
  LOCKSTEP_ASSIGN_OR_RETURN(header.height, in.number());
  if (!header.is_bits()) {
    LOCKSTEP_ASSIGN_OR_RETURN(header.most, in.number());
  }
  if (header.most < 1 || header.most > kMostLevels) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("expected a highest level of 1 to {}, found {}", kMostLevels, header.most));
  }
  header.pixels_at = in.at();
  return header;
}

std::uint8_t level_of(std::int64_t value, const NetpbmHeader& header) {
  if (header.is_bits()) return value == 0 ? 255 : 0;
  const bool cut_off = header.channels() == 1 && header.most > 255;
  const double white = cut_off ? 65535.0 : 255.0;
  const double level = std::nearbyint(static_cast<double>(value) / static_cast<double>(header.most) * white);
  return static_cast<std::uint8_t>(std::min(level, 255.0));
}

// Writes levels into the picture, in the order of the file.
class Filler {
 public:
  Filler(Image& image, int channels) : pixel_(image.row(0)), channels_(channels) {}

  void put(std::uint8_t level) {
    if (channels_ == 1) {
      std::fill_n(pixel_, 3, level);
    } else {
      pixel_[channel_] = level;
    }
    if (++channel_ < channels_) return;
    pixel_[3] = 255;
    pixel_ += Image::kBytesPerPixel;
    channel_ = 0;
  }

 private:
  std::uint8_t* pixel_;
  int channels_;
  int channel_ = 0;
};

Status fill_from_text(std::span<const std::uint8_t> bytes, const NetpbmHeader& header, std::size_t levels,
                      Filler& filler) {
  TextReader in(bytes, header.pixels_at);
  for (std::size_t i = 0; i < levels; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t value, header.is_bits() ? in.bit() : in.number());
    if (value > header.most) {
      return {ErrorCode::kCorrupt,
              fmt::format("expected levels up to {}, found {} before byte {}", header.most, value, in.at())};
    }
    filler.put(level_of(value, header));
  }
  return {};
}

void fill_from_bits(const std::uint8_t* from, const NetpbmHeader& header, Filler& filler) {
  const auto width = static_cast<std::size_t>(header.width);
  for (std::int64_t y = 0; y < header.height; ++y, from += (width + 7) / 8) {
    for (std::size_t x = 0; x < width; ++x) filler.put(level_of(from[x / 8] >> (7 - x % 8) & 1, header));
  }
}

void fill_from_bytes(const std::uint8_t* from, const NetpbmHeader& header, std::size_t levels, Filler& filler) {
  if (header.most > 255) {
    for (std::size_t i = 0; i < levels; ++i) filler.put(level_of(from[2 * i] << 8 | from[2 * i + 1], header));
    return;
  }
  std::array<std::uint8_t, 256> level{};
  for (std::size_t value = 0; value < level.size(); ++value) {
    level[value] = level_of(static_cast<std::int64_t>(value), header);
  }
  for (std::size_t i = 0; i < levels; ++i) filler.put(level[from[i]]);
}

}  // namespace

Status decode_netpbm(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image) {
  LOCKSTEP_ASSIGN_OR_RETURN(const NetpbmHeader header, read_netpbm_header(bytes));
  LOCKSTEP_RETURN_IF_ERROR(check_size(header.width, header.height, options));
  const auto width = static_cast<std::size_t>(header.width);
  const auto height = static_cast<std::size_t>(header.height);
  const std::size_t levels = width * height * static_cast<std::size_t>(header.channels());
  std::size_t needed = levels;  // text has at least one byte for each level
  if (header.kind == 4) needed = (width + 7) / 8 * height;
  if (!header.is_text() && header.most > 255) needed = 2 * levels;
  if (bytes.size() - header.pixels_at < needed) return cut_short(bytes.size());
  image.reset(static_cast<int>(header.width), static_cast<int>(header.height));
  Filler filler(image, header.channels());
  if (header.is_text()) return fill_from_text(bytes, header, levels, filler);
  const std::uint8_t* from = bytes.data() + header.pixels_at;
  header.is_bits() ? fill_from_bits(from, header, filler) : fill_from_bytes(from, header, levels, filler);
  return {};
}

Result<ImageSize> netpbm_size(std::span<const std::uint8_t> bytes) {
  const Result<NetpbmHeader> header = read_netpbm_header(bytes);
  if (!header.ok()) return header.status().with_context("PPM");
  // The numbers have up to 10 digits. Larger ones become INT_MAX, which check_size refuses.
  constexpr std::int64_t kMost = INT_MAX;
  return ImageSize{static_cast<int>(std::min(header.value().width, kMost)),
                   static_cast<int>(std::min(header.value().height, kMost))};
}

}  // namespace lockstep::data
