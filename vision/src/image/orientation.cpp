// Reads EXIF's orientation tag and turns pictures upright. Tests DecodeParity compare with PIL's exif_transpose.
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

constexpr std::uint16_t kOrientationTag = 0x0112;

// A TIFF structure: "II" or "MM", 42, the offset of a list of 12-byte entries (tag, type, count, value or its offset).
class Tiff {
 public:
  explicit Tiff(std::span<const std::uint8_t> bytes) : bytes_(bytes), little_(!bytes.empty() && bytes[0] == 'I') {}

  // nullopt: there is no such tag.
  std::optional<int> orientation() const {
    if (bytes_.size() < 8 || bytes_[0] != bytes_[1] || (bytes_[0] != 'I' && bytes_[0] != 'M')) return std::nullopt;
    if (number(2, 2) != 42) return std::nullopt;
    const std::size_t list = number(4, 4);
    const std::size_t entries = number(list, 2);
    std::optional<int> found;
    for (std::size_t i = 0; i < entries; ++i) {
      const std::size_t entry = list + 2 + 12 * i;
      if (entry + 12 > bytes_.size()) break;
      // Of several the last one counts, as in PIL. A tag without values is none.
      if (number(entry, 2) == kOrientationTag && number(entry + 4, 4) != 0) found = orientation_in(entry);
    }
    return found;
  }

 private:
  // The standard says SHORT; PIL takes the other integers too, but not BYTE.
  int orientation_in(std::size_t entry) const {
    constexpr std::uint32_t kShort = 3;
    constexpr std::uint32_t kLong = 4;
    constexpr std::uint32_t kSignedShort = 8;
    constexpr std::uint32_t kSignedLong = 9;
    const std::uint32_t type = number(entry + 2, 2);
    const bool is_short = type == kShort || type == kSignedShort;
    const std::uint32_t count = number(entry + 4, 4);
    if (!(is_short || type == kLong || type == kSignedLong)) return 1;
    const std::size_t bytes = is_short ? 2 : 4;
    const std::size_t at = count <= 4 / bytes ? entry + 8 : number(entry + 8, 4);
    const std::uint32_t value = number(at, bytes);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }

  // Returns 0 outside of the bytes.
  std::uint32_t number(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | bytes_[at + (little_ ? count - 1 - i : i)];
    return value;
  }

  std::span<const std::uint8_t> bytes_;
  bool little_;
};

// Where the next marker's second byte is, from `at` on. Any number of ff may come before it; PIL and libjpeg also skip
// other bytes between segments, and markers that stand alone.
std::size_t marker_at(std::span<const std::uint8_t> bytes, std::size_t at) {
  constexpr std::uint8_t kTemporary = 0x01;
  const auto stands_alone = [](std::uint8_t marker) {
    return marker == 0 || marker == kTemporary || (marker >= 0xd0 && marker <= 0xd9);
  };
  for (; at + 1 < bytes.size(); ++at) {
    if (bytes[at] == 0xff && bytes[at + 1] != 0xff && !stands_alone(bytes[at + 1])) return at + 1;
  }
  return bytes.size();
}

using namespace std::string_view_literals;
using Bytes = std::span<const std::uint8_t>;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The content after a signature, or nothing where the signature is not.
Bytes after(std::string_view signature, Bytes bytes) {
  return text_of(bytes).starts_with(signature) ? bytes.subspan(signature.size()) : Bytes();
}

constexpr std::string_view kExif = "Exif\0\0"sv;

struct Metadata {
  Bytes exif;  // a TIFF structure, with or without its signature
  Bytes xmp;
};

Metadata metadata_of_jpeg(Bytes bytes) {
  constexpr std::uint8_t kMetadataMarker = 0xe1;
  constexpr std::uint8_t kScanMarker = 0xda;
  Metadata found;
  // Segments: ff, marker, 2 bytes of length (which counts itself).
  for (std::size_t at = marker_at(bytes, 2); at + 3 <= bytes.size() && bytes[at] != kScanMarker;) {
    const std::size_t length = std::size_t{bytes[at + 1]} << 8 | bytes[at + 2];
    if (length < 2 || length > bytes.size() - at - 1) break;
    if (bytes[at] == kMetadataMarker) {
      const Bytes content = bytes.subspan(at + 3, length - 2);
      if (found.exif.empty() && !after(kExif, content).empty()) found.exif = content;
      if (const Bytes xmp = after("http://ns.adobe.com/xap/1.0/\0"sv, content); !xmp.empty()) found.xmp = xmp;
    }
    at = marker_at(bytes, at + 1 + length);
  }
  return found;
}

// Compressed XMP and EXIF as hexadecimal text are not read.
Metadata metadata_of_png(Bytes bytes) {
  Metadata found;
  std::size_t at = kPngSignature;
  for (std::optional<PngChunk> chunk; (chunk = png_chunk(bytes, at)) && !chunk->cut; at = chunk->next) {
    if (chunk->name == "eXIf") found.exif = chunk->content;
    const Bytes xmp = after("XML:com.adobe.xmp\0\0"sv, chunk->content);
    if (chunk->name == "iTXt" && !xmp.empty()) found.xmp = xmp;
  }
  return found;
}

// As libwebp: chunks of the extended format count when its flags name them, and the first of a kind counts.
Metadata metadata_of_webp(Bytes bytes) {
  constexpr std::size_t kFirst = 12;  // after "RIFF", the length and "WEBP"
  constexpr std::uint8_t kHasExif = 8;
  constexpr std::uint8_t kHasXmp = 4;
  Metadata found;
  if (bytes.size() < kFirst + 9 || !text_of(bytes.subspan(kFirst)).starts_with("VP8X")) return found;
  const std::uint8_t flags = bytes[kFirst + 8];
  for (std::size_t at = kFirst; at <= bytes.size() && bytes.size() - at >= 8;) {
    const Bytes head = bytes.subspan(at, 8);
    const std::size_t length =
        std::size_t{head[4]} | std::size_t{head[5]} << 8 | std::size_t{head[6]} << 16 | std::size_t{head[7]} << 24;
    if (length > bytes.size() - at - 8) break;
    const Bytes content = bytes.subspan(at + 8, length);
    const std::string_view name = text_of(head.first(4));
    if (name == "EXIF" && (flags & kHasExif) != 0 && found.exif.empty()) found.exif = content;
    if (name == "XMP " && (flags & kHasXmp) != 0 && found.xmp.empty()) found.xmp = content;
    at += 8 + length + length % 2;
  }
  return found;
}

// The first tiff:Orientation="6" or <tiff:Orientation>6, as PIL finds it.
int xmp_orientation(Bytes xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::string_view text = text_of(xmp);
       (text = text.substr(std::min(text.find(kName), text.size()))).size() > 0;) {
    text.remove_prefix(kName.size());
    std::string_view value = text;
    if (!value.starts_with("=\"") && !value.starts_with('>')) continue;
    value.remove_prefix(value[0] == '>' ? 1 : 2);
    if (value.empty() || value[0] < '0' || value[0] > '9') continue;
    return value[0] >= '1' && value[0] <= '8' ? value[0] - '0' : 1;
  }
  return 1;
}

}  // namespace

int exif_orientation(std::span<const std::uint8_t> bytes) {
  Metadata found;
  switch (image_format(bytes).value_or(ImageFormat::kBmp)) {
    case ImageFormat::kJpeg: found = metadata_of_jpeg(bytes); break;
    case ImageFormat::kPng: found = metadata_of_png(bytes); break;
    case ImageFormat::kWebp: found = metadata_of_webp(bytes); break;
    default: return 1;  // a TIFF file is always turned
  }
  // Some encoders write the signature twice.
  for (int i = 0; i < 2; ++i) {
    if (const Bytes rest = after(kExif, found.exif); !rest.empty()) found.exif = rest;
  }
  return Tiff(found.exif).orientation().value_or(xmp_orientation(found.xmp));
}

ImageSize upright_size(int orientation, ImageSize size) {
  return orientation >= 5 ? ImageSize{size.height, size.width} : size;
}

void apply_orientation(int orientation, Image& image) {
  if (orientation <= 1 || orientation > 8) return;
  // Values 5 to 8 exchange rows and columns. Each value has its own direction for rows and columns.
  const bool transposed = orientation >= 5;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned(transposed ? image.height() : image.width(), transposed ? image.width() : image.height());
  for (int y = 0; y < turned.height(); ++y) {
    for (int x = 0; x < turned.width(); ++x) {
      int from_x = transposed ? y : x;
      int from_y = transposed ? x : y;
      if (from_right) from_x = image.width() - 1 - from_x;
      if (from_bottom) from_y = image.height() - 1 - from_y;
      std::memcpy(turned.row(y) + 4 * static_cast<std::size_t>(x), image.pixel(from_x, from_y).data(), 4);
    }
  }
  image = std::move(turned);
}

}  // namespace lockstep::data
