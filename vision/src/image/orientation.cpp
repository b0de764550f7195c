// Reads EXIF's orientation tag and turns pictures upright. Tests DecodeParity compare with PIL's exif_transpose.
#include <cstring>
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

  // 1 without such a tag.
  int orientation() const {
    if (bytes_.size() < 8 || bytes_[0] != bytes_[1] || (bytes_[0] != 'I' && bytes_[0] != 'M')) return 1;
    if (number(2, 2) != 42) return 1;
    const std::size_t list = number(4, 4);
    const std::size_t entries = number(list, 2);
    int found = 1;
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

}  // namespace

int exif_orientation(std::span<const std::uint8_t> bytes) {
  using namespace std::string_view_literals;
  constexpr std::string_view kExif = "Exif\0\0"sv;
  constexpr std::uint8_t kMetadataMarker = 0xe1;
  constexpr std::uint8_t kScanMarker = 0xda;
  if (image_format(bytes) != ImageFormat::kJpeg) return 1;  // a TIFF file is always turned
  // Segments: ff, marker, 2 bytes of length (which counts itself).
  for (std::size_t at = marker_at(bytes, 2); at + 3 <= bytes.size() && bytes[at] != kScanMarker;) {
    const std::size_t length = std::size_t{bytes[at + 1]} << 8 | bytes[at + 2];
    if (length < 2 || length > bytes.size() - at - 1) break;
    const std::span<const std::uint8_t> content = bytes.subspan(at + 3, length - 2);
    const std::string_view text(reinterpret_cast<const char*>(content.data()), content.size());
    if (bytes[at] == kMetadataMarker && text.starts_with(kExif) && text.size() > kExif.size()) {
      // Some encoders write the signature twice.
      const bool twice = text.substr(kExif.size()).starts_with(kExif);
      return Tiff(content.subspan(kExif.size() * (twice ? 2 : 1))).orientation();
    }
    at = marker_at(bytes, at + 1 + length);
  }
  return 1;
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
