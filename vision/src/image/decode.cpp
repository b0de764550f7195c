#include "lockstep/image/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/printable.h"
#include "base/regular_file.h"
#include "image/decoders.h"
#include "image/memory_errors.h"

namespace lockstep::data {
namespace {

bool starts_with(std::span<const std::uint8_t> bytes, std::string_view text, std::size_t at = 0) {
  return bytes.size() >= at + text.size() && std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

constexpr std::string_view kExpected = "a JPEG, PNG, BMP, WebP, PPM or TIFF picture";

// Other formats that picture folders may have: an error with their name says more than one with eight bytes.
struct OtherFormat {
  std::size_t at;
  std::string_view text;
  std::string_view name;
};
constexpr OtherFormat kOtherFormats[] = {{0, "GIF8", "GIF"}, {4, "ftyp", "HEIC or AVIF"}};

Status empty_file() {
  return {ErrorCode::kCorrupt, fmt::format("the file is empty; expected {}", kExpected)};
}

// `bytes`: the content, or the beginning of a file of `size` bytes.
Status unknown_format(std::span<const std::uint8_t> bytes, std::uint64_t size) {
  if (bytes.empty()) return empty_file();
  for (const OtherFormat& other : kOtherFormats) {
    if (!starts_with(bytes, other.text, other.at)) continue;
    return {ErrorCode::kUnsupported,
            fmt::format("expected {}, found {}, which is not read here: convert it to PNG", kExpected, other.name)};
  }
  std::string found;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) found += fmt::format(" {:02x}", bytes[i]);
  return {ErrorCode::kUnsupported,
          fmt::format("expected {}, found {} bytes that begin with{}", kExpected, size, found)};
}

struct Decoder {
  std::string_view name;
  Result<ImageSize> (*size)(std::span<const std::uint8_t> bytes);
  Status (*decode)(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
};
// In the order of ImageFormat. decode_jpeg() decodes regions, the others whole pictures.
constexpr Decoder kDecoders[] = {{"JPEG", jpeg_size, nullptr},        {"PNG", png_size, decode_png},
                                 {"BMP", bmp_size, decode_bmp},       {"WebP", webp_size, decode_webp},
                                 {"PPM", netpbm_size, decode_netpbm}, {"TIFF", tiff_size, decode_tiff}};
static_assert(std::size(kDecoders) == static_cast<std::size_t>(ImageFormat::kTiff) + 1);

const Decoder& decoder_of(ImageFormat format) {
  return kDecoders[static_cast<std::size_t>(format)];
}

// Checks the size, so that callers can plan with it: no side is 0 or has billions of pixels.
Result<ImageSize> size_of_picture(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  const std::optional<ImageFormat> format = image_format(bytes);
  if (!format) return unknown_format(bytes, bytes.size());
  Result<ImageSize> size = decoder_of(*format).size(bytes);
  if (!size.ok()) return size;
  Status status = check_size(size.value().width, size.value().height, options);
  if (!status.ok()) return status.with_context(to_string(*format));
  return size;
}

// read_image_file, for at most the first `most_bytes` of a file (and never fewer than tell the format).
Status read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& bytes,
                 std::size_t most_bytes = static_cast<std::size_t>(-1)) {
  const std::string name = printable(path.native());
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  std::array<std::uint8_t, 16> buffer;  // enough to know the format
  LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t got, file.read(buffer));
  const std::span first = std::span(buffer).first(got);
  if (!image_format(first)) return unknown_format(first, file.size()).with_context(name);
  if (file.size() > kMaxFileBytes) {
    return {ErrorCode::kUnsupported,
            fmt::format("{}: expected a picture file of at most {} bytes, found {}", name, kMaxFileBytes, file.size())};
  }
  return or_out_of_memory(path.native(), [&]() -> Status {
    bytes.resize(std::max<std::size_t>(got, std::min<std::size_t>(file.size(), most_bytes)));
    std::copy(first.begin(), first.end(), bytes.begin());
    LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t rest, file.read(std::span(bytes).subspan(got)));
    bytes.resize(got + rest);  // if the file became shorter meanwhile, the decoder reports it
    return {};
  });
}

constexpr DecodeOptions kAnyNumberOfPixels{.max_pixels = std::numeric_limits<std::int64_t>::max()};

}  // namespace

std::string_view to_string(ImageFormat format) {
  return decoder_of(format).name;
}

std::optional<ImageFormat> image_format(std::span<const std::uint8_t> bytes) {
  if (starts_with(bytes, "\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (starts_with(bytes, "\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  if (starts_with(bytes, "BM")) return ImageFormat::kBmp;
  const bool netpbm = bytes.size() >= 3 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6';
  if (netpbm && (bytes[2] == ' ' || (bytes[2] >= '\t' && bytes[2] <= '\r'))) return ImageFormat::kPpm;
  // The second pair is BigTIFF.
  using namespace std::string_view_literals;
  for (const std::string_view tiff : {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv}) {
    if (starts_with(bytes, tiff)) return ImageFormat::kTiff;
  }
  if (starts_with(bytes, "RIFF") && starts_with(bytes, "WEBP", 8)) return ImageFormat::kWebp;
  return std::nullopt;
}

Status check_size(std::int64_t width, std::int64_t height, const DecodeOptions& options) {
  // More than the default of max_pixels. The arithmetic of rows needs it where a program allows more pixels.
  constexpr std::int64_t kLargestSide = 1 << 28;
  if (width < 1 || height < 1 || width > kLargestSide || height > kLargestSide) {
    return {ErrorCode::kCorrupt,
            fmt::format("its header says {} x {} pixels; expected 1 to {} each", width, height, kLargestSide)};
  }
  if (width * height > options.max_pixels) {
    return {ErrorCode::kCorrupt,
            fmt::format("its header says {} x {} pixels, more than max_pixels {}: a damaged or hostile file, or raise "
                        "DecodeOptions::max_pixels",
                        width, height, options.max_pixels)};
  }
  return {};
}

namespace {

Result<DecodedRegion> decode_known(ImageFormat format, std::span<const std::uint8_t> bytes,
                                   const DecodeRequest& request, Image& image) {
  if (format == ImageFormat::kJpeg) return decode_jpeg(bytes, request, image);
  const Status status = decoder_of(format).decode(bytes, request.options, image);
  if (!status.ok()) return status.with_context(to_string(format));
  const Box whole{0, 0, image.width(), image.height()};
  const Box box = request.region.empty() ? whole : request.region;
  if (box.right() > whole.width || box.bottom() > whole.height) {
    return Status(ErrorCode::kCorrupt, "its pixels do not fill the size of its header");
  }
  return DecodedRegion{View(image).part(box), box, image.size(), 1};
}

}  // namespace

Result<DecodedRegion> decode_region(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image) {
  const std::optional<ImageFormat> format = image_format(bytes);
  if (!format) return unknown_format(bytes, bytes.size());
  return or_out_of_memory(to_string(*format), [&] { return decode_known(*format, bytes, request, image); });
}

Result<Image> decode_image(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  Image image;
  const Result<DecodedRegion> decoded = decode_region(bytes, {.options = options}, image);
  if (!decoded.ok()) return decoded.status();
  if (options.apply_orientation) apply_orientation(exif_orientation(bytes), image);
  return image;
}

Result<Image> decode_image(const std::filesystem::path& path, const DecodeOptions& options) {
  std::vector<std::uint8_t> bytes;
  Status status = read_file(path, bytes);
  if (!status.ok()) return status;
  Result<Image> image = decode_image(bytes, options);
  if (!image.ok()) return image.status().with_context(printable(path.native()));
  return image;
}

Result<ImageSize> image_size(std::span<const std::uint8_t> bytes) {
  return size_of_picture(bytes, kAnyNumberOfPixels);
}

Result<ImageSize> image_size(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  Result<ImageSize> size = size_of_picture(bytes, options);
  if (size.ok() && options.apply_orientation) size = upright_size(exif_orientation(bytes), size.value());
  return size;
}

Result<ImageSize> image_size(const std::filesystem::path& path) {
  // Long metadata may come before the size in a JPEG (previews, colour profiles): then the whole file is read.
  std::vector<std::uint8_t> bytes;
  for (const std::size_t most : {std::size_t{64} << 10, static_cast<std::size_t>(-1)}) {
    Status status = read_file(path, bytes, most);
    if (!status.ok()) return status;
    Result<ImageSize> size = size_of_picture(bytes, kAnyNumberOfPixels);
    if (size.ok()) return size;
    if (bytes.size() < most) return size.status().with_context(printable(path.native()));
  }
  return Status(ErrorCode::kInternal, "not reached");
}

Status read_image_file(const std::filesystem::path& path, std::vector<std::uint8_t>& bytes) {
  return read_file(path, bytes);
}

}  // namespace lockstep::data
