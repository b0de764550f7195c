// Windows bitmaps: 1, 4, 8 bits with a palette (plain or run-length encoded), 16, 24 and 32 bits, bottom-up or
// top-down.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kFileHeader = 14;
enum Compression : std::uint32_t { kPlain = 0, kRle8 = 1, kRle4 = 2, kBitFields = 3 };

struct BmpHeader {
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool top_down = false;
  std::uint32_t bits = 0;
  std::uint32_t compression = kPlain;
  std::size_t pixels_at = 0;
  std::array<std::uint32_t, 3> masks{};  // of R, G and B, for 16 and 32 bits
  std::array<std::array<std::uint8_t, 4>, 256> palette{};
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint32_t number(std::size_t at, std::size_t count) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= std::uint32_t{bytes_[at + i]} << (8 * i);
    return value;
  }
  bool has(std::size_t end) const { return bytes_.size() >= end; }

 private:
  std::span<const std::uint8_t> bytes_;
};

Status cut_short(std::size_t needed, std::size_t size) {
  return {ErrorCode::kCorrupt, fmt::format("the file is cut short: expected {} bytes, found {}", needed, size)};
}

Status read_masks(const Reader& in, BmpHeader& header) {
  if (header.bits == 16) header.masks = {0x7c00, 0x3e0, 0x1f};
  if (header.bits == 32) header.masks = {0xff0000, 0xff00, 0xff};
  if (header.compression != kBitFields) return {};
  const std::size_t at = kFileHeader + 40;
  if (!in.has(at + 12)) return {ErrorCode::kCorrupt, "the file is cut short in its header"};
  std::array<std::uint32_t, 3> masks{};
  for (std::size_t i = 0; i < 3; ++i) masks[i] = in.number(at + 4 * i, 4);
  const bool none = masks == std::array<std::uint32_t, 3>{};
  const bool bytes = header.bits == 24 && masks == std::array<std::uint32_t, 3>{0xff0000, 0xff00, 0xff};
  for (const std::uint32_t mask : masks) {
    const int ones = std::popcount(mask);
    if (none || bytes || (header.bits == 32 && ones == 8 && mask % 255 == 0) ||
        (header.bits == 16 && (ones == 5 || ones == 6)))
      continue;
    return {ErrorCode::kUnsupported, fmt::format("expected colour masks of 5, 6 or 8 bits, found {:#x}", mask)};
  }
  if (!none) header.masks = masks;
  return {};
}

Status read_palette(const Reader& in, std::size_t header_size, BmpHeader& header) {
  if (header.bits > 8) return {};
  const std::size_t entry = header_size == 12 ? 3 : 4;
  std::uint32_t colors = header_size == 12 ? 0 : in.number(kFileHeader + 32, 4);
  if (colors == 0) colors = 1U << header.bits;
  if (colors > 65536) return {ErrorCode::kCorrupt, fmt::format("expected at most 256 colours, found {}", colors)};
  const std::size_t at = kFileHeader + header_size;
  // PIL takes a picture with the palette 0, 1, 2, ... for grey levels. So those beyond a short palette count too. Of
  // one or two colours PIL expects black and white.
  bool grey_levels = header.bits == 8 && colors > 2;
  for (std::size_t i = 0; i < 256; ++i) {
    auto& color = header.palette[i];
    const auto level = static_cast<std::uint8_t>(i);
    const std::array<std::uint8_t, 4> grey{level, level, level, 255};
    if (i < colors && in.has(at + (i + 1) * entry)) {
      for (std::size_t c = 0; c < 3; ++c) color[c] = static_cast<std::uint8_t>(in.number(at + i * entry + 2 - c, 1));
      color[3] = 255;
      grey_levels = grey_levels && color == grey;
    } else if (grey_levels) {
      color = grey;
    }
  }
  // Some encoders forget the palette in the offset of the pixels.
  if (header.pixels_at == 0 || header.pixels_at == at) header.pixels_at = at + colors * entry;
  return {};
}

Result<BmpHeader> read_bmp_header(std::span<const std::uint8_t> bytes) {
  const Reader in(bytes);
  if (!in.has(kFileHeader + 12)) return cut_short(kFileHeader + 40, bytes.size());
  const std::size_t size = in.number(kFileHeader, 4);
  if (size != 12 && size != 40 && size != 52 && size != 56 && size != 64 && size != 108 && size != 124) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("expected a header of 12, 40, 52, 56, 64, 108 or 124 bytes, found {}", size));
  }
  if (!in.has(kFileHeader + size)) return cut_short(kFileHeader + size, bytes.size());
  BmpHeader header;
  header.pixels_at = in.number(10, 4);
  if (size == 12) {
    header.width = in.number(18, 2);
    header.height = in.number(20, 2);
    header.bits = in.number(24, 2);
  } else {
    header.width = static_cast<std::int32_t>(in.number(18, 4));
    header.height = static_cast<std::int32_t>(in.number(22, 4));
    header.bits = in.number(28, 2);
    header.compression = in.number(30, 4);
  }
  header.top_down = header.height < 0;
  header.height = std::abs(header.height);
  const std::uint32_t bits = header.bits;
  if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32) {
    return Status(ErrorCode::kUnsupported, fmt::format("expected 1, 4, 8, 16, 24 or 32 bits a pixel, found {}", bits));
  }
  const bool in_runs = header.compression == kRle8 || header.compression == kRle4;
  const bool fits =
      header.compression == kPlain || (in_runs && bits <= 8) || (header.compression == kBitFields && bits >= 16);
  if (!fits) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("expected compression 0 to 3, found {} with {} bits a pixel", header.compression, bits));
  }
  LOCKSTEP_RETURN_IF_ERROR(read_masks(in, header));
  LOCKSTEP_RETURN_IF_ERROR(read_palette(in, size, header));
  if (header.pixels_at == 0)
    header.pixels_at = kFileHeader + size + (header.compression == kBitFields && size == 40 ? 12 : 0);
  return header;
}

// The bits under `mask`, scaled to 0..255 (rounded down, as PIL does).
std::uint8_t channel(std::uint32_t value, std::uint32_t mask) {
  const std::uint32_t most = mask >> std::countr_zero(mask);
  return static_cast<std::uint8_t>(((value & mask) >> std::countr_zero(mask)) * 255 / most);
}

void unpack_row(const BmpHeader& header, const std::uint8_t* from, std::uint8_t* to, int width) {
  const Reader in({from, (static_cast<std::size_t>(width) * header.bits + 7) / 8});
  for (int x = 0; x < width; ++x, to += Image::kBytesPerPixel) {
    const auto at = static_cast<std::size_t>(x) * header.bits;
    if (header.bits <= 8) {
      const std::uint32_t index = (in.number(at / 8, 1) >> (8 - header.bits - at % 8)) & ((1U << header.bits) - 1);
      std::memcpy(to, header.palette[index].data(), 4);
      continue;
    }
    const std::uint32_t value = in.number(at / 8, header.bits / 8);
    for (std::size_t c = 0; c < 3; ++c) {
      to[c] = header.bits == 24 ? static_cast<std::uint8_t>(value >> (16 - 8 * c)) : channel(value, header.masks[c]);
    }
    to[3] = 255;
  }
}

std::size_t plain_row_bytes(const BmpHeader& header) {
  return (static_cast<std::size_t>(header.width) * header.bits + 31) / 32 * 4;
}

// The last row may lack its padding.
std::size_t plain_bytes(const BmpHeader& header) {
  return plain_row_bytes(header) * static_cast<std::size_t>(header.height - 1) +
         (static_cast<std::size_t>(header.width) * header.bits + 7) / 8;
}

void unpack_plain(std::span<const std::uint8_t> bytes, const BmpHeader& header, Image& image) {
  const std::size_t row = plain_row_bytes(header);
  for (int y = 0; y < image.height(); ++y) {
    const int from = header.top_down ? y : image.height() - 1 - y;
    unpack_row(header, bytes.data() + header.pixels_at + row * static_cast<std::size_t>(from), image.row(y),
               image.width());
  }
}

// Codes: (n, v) repeats v; (0, 0) ends the row, (0, 1) ends the picture, (0, 2, dx, dy) moves, (0, n, ...) copies n.
class RunLength {
 public:
  RunLength(std::span<const std::uint8_t> in, const BmpHeader& header, Image& image)
      : in_(in), header_(header), image_(image) {}

  Status unpack() {
    for (int y = 0; y < image_.height(); ++y) fill(y);
    while (at_ + 1 < in_.size()) {
      const int count = in_[at_];
      const int value = in_[at_ + 1];
      at_ += 2;
      if (count > 0) {
        for (int i = 0; i < count; ++i) put(index_in(value, i));
      } else if (value == 0) {
        x_ = 0;
        ++y_;
      } else if (value == 1) {
        return {};
      } else if (value == 2) {
        if (!move()) break;
      } else if (!copy(value)) {
        break;
      }
      if (y_ >= image_.height()) return {};
    }
    if (y_ == image_.height() - 1 && x_ == image_.width()) return {};
    return {ErrorCode::kCorrupt, fmt::format("the file is cut short at row {} of {}", y_, image_.height())};
  }

 private:
  void fill(int y) {
    for (int x = 0; x < image_.width(); ++x)
      std::memcpy(image_.row(y) + 4 * static_cast<std::size_t>(x), header_.palette[0].data(), 4);
  }
  int index_in(int value, int i) const {
    if (header_.compression == kRle8) return value;
    return i % 2 == 0 ? value >> 4 : value & 15;
  }
  void put(int index) {
    if (x_ >= image_.width() || y_ >= image_.height()) return;
    const int row = header_.top_down ? y_ : image_.height() - 1 - y_;
    std::memcpy(image_.row(row) + 4 * static_cast<std::size_t>(x_++),
                header_.palette[static_cast<std::size_t>(index)].data(), 4);
  }
  bool move() {
    if (at_ + 2 > in_.size()) return false;
    // Limited to the border: many moves in a hostile file would overflow an int.
    x_ = std::min(x_ + in_[at_], image_.width());
    y_ = std::min(y_ + in_[at_ + 1], image_.height());
    at_ += 2;
    return true;
  }
  bool copy(int count) {
    const bool half = header_.compression == kRle4;
    const auto size = static_cast<std::size_t>(half ? (count + 1) / 2 : count);
    if (at_ + size > in_.size()) return false;
    for (int i = 0; i < count; ++i) put(index_in(in_[at_ + static_cast<std::size_t>(half ? i / 2 : i)], i));
    at_ += size + size % 2;
    return true;
  }

  std::span<const std::uint8_t> in_;
  const BmpHeader& header_;
  Image& image_;
  std::size_t at_ = 0;
  int x_ = 0;
  int y_ = 0;
};

}  // namespace

Status decode_bmp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image) {
  const Result<BmpHeader> found = read_bmp_header(bytes);
  if (!found.ok()) return found.status();
  const BmpHeader& header = found.value();
  LOCKSTEP_RETURN_IF_ERROR(check_size(header.width, header.height, options));
  const bool in_runs = header.compression == kRle8 || header.compression == kRle4;
  const std::size_t rows = in_runs ? 0 : plain_bytes(header);
  if (bytes.size() < header.pixels_at + rows) return cut_short(header.pixels_at + rows, bytes.size());
  image.reset(static_cast<int>(header.width), static_cast<int>(header.height));
  if (in_runs) return RunLength(bytes.subspan(header.pixels_at), header, image).unpack();
  unpack_plain(bytes, header, image);
  return {};
}

Result<ImageSize> bmp_size(std::span<const std::uint8_t> bytes) {
  const Result<BmpHeader> header = read_bmp_header(bytes);
  if (!header.ok()) return header.status().with_context("BMP");
  return ImageSize{static_cast<int>(header.value().width), static_cast<int>(header.value().height)};
}

}  // namespace lockstep::data
