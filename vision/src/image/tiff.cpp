// TIFF with libtiff: the first picture of a file, with the pixels of PIL (its table of modes is in TiffImagePlugin.py).
// Samples of 16 bits keep their high byte; grey of more than 8 bits is limited to 255 instead, as in PIL's conversion
// to RGB. The picture is turned as its orientation says: PIL does that with TIFF, unlike with JPEG.
#include <fmt/format.h>
#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

constexpr int kMostSamples = 6;                                          // of a pixel, as in PIL
constexpr tmsize_t kMostBytes = tmsize_t{1} << 30;                       // of one allocation of libtiff
constexpr tmsize_t kMostBytesOfBlock = std::numeric_limits<int>::max();  // of a strip or tile, as in PIL

struct CloseTiff {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
struct FreeOptions {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
};

// A file in memory, and libtiff's first complaint about it.
class Source {
 public:
  explicit Source(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::unique_ptr<TIFF, CloseTiff> open() {
    const std::unique_ptr<TIFFOpenOptions, FreeOptions> options(TIFFOpenOptionsAlloc());
    if (!options) return nullptr;
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), complain, this);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), warn, this);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), kMostBytes);
    // m: libtiff reads by these functions, and does not map the file.
    return std::unique_ptr<TIFF, CloseTiff>(
        TIFFClientOpenExt("TIFF", "rm", this, read, write, seek, close, size, nullptr, nullptr, options.get()));
  }
  bool has_undefined_pixels() const { return has_undefined_pixels_; }
  Status corrupt(std::string_view what) const {
    return {ErrorCode::kCorrupt, error_.empty() ? std::string(what) : fmt::format("{}: {}", what, error_)};
  }

 private:
  static int complain(TIFF* /*tiff*/, void* source, const char* /*module*/, const char* format, va_list arguments) {
    auto* self = static_cast<Source*>(source);
    char text[256];
    std::vsnprintf(text, sizeof text, format, arguments);
    if (self->error_.empty()) self->error_ = text;
    return 1;
  }
  // A JPEG that is smaller than its strip or tile leaves some pixels of it undefined.
  static int warn(TIFF* /*tiff*/, void* source, const char* /*module*/, const char* format, va_list /*arguments*/) {
    constexpr std::string_view kSmallJpeg = "Improper JPEG strip/tile size";
    auto* self = static_cast<Source*>(source);
    if (!std::string_view(format).starts_with(kSmallJpeg)) return 1;
    self->has_undefined_pixels_ = true;
    self->error_ = kSmallJpeg;
    return 1;
  }
  static tmsize_t read(thandle_t source, void* out, tmsize_t count) {
    auto* self = static_cast<Source*>(source);
    if (count <= 0 || self->at_ >= self->bytes_.size()) return 0;
    const std::size_t got = std::min(static_cast<std::size_t>(count), self->bytes_.size() - self->at_);
    std::memcpy(out, self->bytes_.data() + self->at_, got);
    self->at_ += got;
    return static_cast<tmsize_t>(got);
  }
  static tmsize_t write(thandle_t /*source*/, void* /*bytes*/, tmsize_t /*count*/) { return -1; }
  static toff_t seek(thandle_t source, toff_t offset, int whence) {
    auto* self = static_cast<Source*>(source);
    std::size_t from = 0;
    if (whence == SEEK_CUR) from = self->at_;
    if (whence == SEEK_END) from = self->bytes_.size();
    self->at_ = from + static_cast<std::size_t>(offset);
    return self->at_;
  }
  static int close(thandle_t /*source*/) { return 0; }
  static toff_t size(thandle_t source) { return static_cast<Source*>(source)->bytes_.size(); }

  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  std::string error_;
  bool has_undefined_pixels_ = false;
};

struct TiffHeader {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint16_t bits = 1;  // of a sample
  std::uint16_t samples = 1;
  std::uint16_t format = SAMPLEFORMAT_UINT;
  std::uint16_t planes = PLANARCONFIG_CONTIG;
  std::uint16_t colors = PHOTOMETRIC_MINISWHITE;
  std::uint16_t compression = COMPRESSION_NONE;
  std::uint16_t orientation = ORIENTATION_TOPLEFT;
  bool associated_alpha = false;  // colours are multiplied by alpha

  bool is_grey() const { return colors == PHOTOMETRIC_MINISWHITE || colors == PHOTOMETRIC_MINISBLACK; }
  bool is_separate() const { return planes == PLANARCONFIG_SEPARATE; }
};

TiffHeader header_of(TIFF* tiff) {
  TiffHeader header;
  TIFFGetField(tiff, TIFFTAG_IMAGEWIDTH, &header.width);
  TIFFGetField(tiff, TIFFTAG_IMAGELENGTH, &header.height);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_BITSPERSAMPLE, &header.bits);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLESPERPIXEL, &header.samples);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLEFORMAT, &header.format);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_PLANARCONFIG, &header.planes);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_COMPRESSION, &header.compression);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_ORIENTATION, &header.orientation);
  TIFFGetField(tiff, TIFFTAG_PHOTOMETRIC, &header.colors);
  std::uint16_t extra = 0;
  std::uint16_t* kinds = nullptr;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_EXTRASAMPLES, &extra, &kinds);
  header.associated_alpha = extra > 0 && kinds != nullptr && kinds[0] == EXTRASAMPLE_ASSOCALPHA;
  // Planes without a meaning are left out, as in PIL: the file need not have them.
  const bool unspecified = kinds != nullptr && std::all_of(kinds, kinds + extra, [](auto kind) { return kind == 0; });
  if (header.is_separate() && unspecified && extra < header.samples) header.samples -= extra;
  return header;
}

// A tile is decoded whole, however little of it is in the picture. Files may have larger tiles than pictures.
Status check_tile(TIFF* tiff, const DecodeOptions& options) {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  if (TIFFIsTiled(tiff) == 0) return {};
  TIFFGetField(tiff, TIFFTAG_TILEWIDTH, &width);
  TIFFGetField(tiff, TIFFTAG_TILELENGTH, &height);
  constexpr std::int64_t kUsual = std::int64_t{1} << 20;
  return check_size(width, height, {.max_pixels = std::max(options.max_pixels, kUsual)}).with_context("its tiles");
}

Status check(const TiffHeader& header) {
  const auto unsupported = [](const std::string& what) { return Status(ErrorCode::kUnsupported, what); };
  if (TIFFIsCODECConfigured(header.compression) == 0) {
    return unsupported(fmt::format("its compression {} is not read here", header.compression));
  }
  if (header.samples < 1 || header.samples > kMostSamples) {
    return unsupported(fmt::format("expected 1 to {} samples a pixel, found {}", kMostSamples, header.samples));
  }
  int needed = 1;
  switch (header.colors) {
    case PHOTOMETRIC_MINISWHITE:
    case PHOTOMETRIC_MINISBLACK:
    case PHOTOMETRIC_PALETTE: break;
    case PHOTOMETRIC_RGB:
    case PHOTOMETRIC_YCBCR: needed = 3; break;
    case PHOTOMETRIC_SEPARATED: needed = 4; break;
    default: return unsupported(fmt::format("its colour space {} is not read here", header.colors));
  }
  const bool one_grey = header.is_grey() && header.samples == 1;
  const bool floats = header.format == SAMPLEFORMAT_IEEEFP;
  const bool bits_fit =
      header.bits == 8 || (header.bits == 16 && header.colors != PHOTOMETRIC_PALETTE) ||
      (needed == 1 && header.samples == 1 && header.bits < 8 && 8 % header.bits == 0) ||
      (one_grey && header.bits == 32) ||
      (one_grey && header.bits == 12 && header.colors == PHOTOMETRIC_MINISBLACK && header.format == SAMPLEFORMAT_UINT);
  if (header.bits == 0 || !bits_fit || header.samples < needed || (floats && !(one_grey && header.bits == 32)) ||
      header.format > SAMPLEFORMAT_VOID) {
    return unsupported(fmt::format("pixels of {} samples of {} bits (format {}, colour space {}) are not read here",
                                   header.samples, header.bits, header.format, header.colors));
  }
  return {};
}

// Puts the samples into the bytes of Image's pixels, 8 bits each (fewer as they are), and then makes RGB of them.
class Unpacker {
 public:
  Unpacker(TIFF* tiff, const TiffHeader& header, Image& image) : tiff_(tiff), header_(header), image_(image) {}

  bool unpack() {
    const int planes = header_.is_separate() ? std::min<int>(header_.samples, Image::kBytesPerPixel) : 1;
    for (int plane = 0; plane < planes; ++plane) {
      if (!read_blocks(plane)) return false;
    }
    for (int y = 0; y < image_.height(); ++y) finish_row(image_.row(y));
    return true;
  }

 private:
  // Strips are read whole, as PIL does: in a damaged file a run of one row may go on in the next row, and libtiff drops
  // the rest of this run, without an error, when it is asked for single rows.
  bool read_blocks(int plane) {
    const bool tiled = TIFFIsTiled(tiff_) != 0;
    std::uint32_t width = header_.width;
    std::uint32_t height = header_.height;
    if (tiled) TIFFGetField(tiff_, TIFFTAG_TILEWIDTH, &width);
    TIFFGetFieldDefaulted(tiff_, tiled ? TIFFTAG_TILELENGTH : TIFFTAG_ROWSPERSTRIP, &height);
    if (!tiled) height = std::min(height, header_.height);
    const tmsize_t bytes = tiled ? TIFFTileSize(tiff_) : TIFFStripSize(tiff_);
    const tmsize_t stride = tiled ? TIFFTileRowSize(tiff_) : TIFFScanlineSize(tiff_);
    if (width == 0 || height == 0 || bytes <= 0 || bytes > kMostBytesOfBlock || stride <= 0 ||
        static_cast<std::size_t>(stride) < row_bytes(width) || bytes / stride < static_cast<tmsize_t>(height)) {
      return false;
    }
    buffer_.assign(static_cast<std::size_t>(bytes), 0);
    for (std::uint32_t y = 0; y < header_.height; y += height) {
      for (std::uint32_t x = 0; x < header_.width; x += width) {
        if (!read_block(x, y, static_cast<std::uint16_t>(plane))) return false;
        const std::uint32_t rows = std::min(height, header_.height - y);
        for (std::uint32_t row = 0; row < rows; ++row) {
          put(buffer_.data() + std::size_t{row} * static_cast<std::size_t>(stride), plane, x, y + row,
              std::min(width, header_.width - x));
        }
      }
    }
    return true;
  }

  bool read_block(std::uint32_t x, std::uint32_t y, std::uint16_t plane) {
    if (TIFFIsTiled(tiff_) != 0) return TIFFReadTile(tiff_, buffer_.data(), x, y, 0, plane) >= 0;
    const std::uint32_t strip = TIFFComputeStrip(tiff_, y, plane);
    if (TIFFGetStrileByteCount(tiff_, strip) == 0) return false;  // libtiff takes other bytes for uncompressed pixels
    return TIFFReadEncodedStrip(tiff_, strip, buffer_.data(), static_cast<tmsize_t>(buffer_.size())) >= 0;
  }

  std::size_t row_bytes(std::uint32_t width) const {
    const std::size_t samples = header_.is_separate() ? 1 : header_.samples;
    return (std::size_t{width} * samples * header_.bits + 7) / 8;
  }

  // The samples of `count` pixels from (x, y) on; of one plane, or of all.
  void put(const std::uint8_t* from, int plane, std::uint32_t x, std::uint32_t y, std::uint32_t count) {
    const std::size_t step = header_.is_separate() ? 1 : header_.samples;
    const std::size_t kept = std::min<std::size_t>(step, Image::kBytesPerPixel);
    std::uint8_t* to =
        image_.row(static_cast<int>(y)) + std::size_t{Image::kBytesPerPixel} * x + (header_.is_separate() ? plane : 0);
    for (std::size_t i = 0; i < count; ++i, to += Image::kBytesPerPixel) {
      for (std::size_t sample = 0; sample < kept; ++sample) to[sample] = value(from, i * step + sample);
    }
  }

  std::uint8_t value(const std::uint8_t* from, std::size_t number) const {
    if (header_.bits == 8) return from[number];
    if (header_.bits < 8) {
      const std::size_t bit = number * header_.bits;
      return static_cast<std::uint8_t>((from[bit / 8] >> (8 - header_.bits - bit % 8)) & ((1U << header_.bits) - 1));
    }
    if (header_.bits == 12) {
      const std::uint8_t* pair = from + number / 2 * 3;
      const int bits = number % 2 == 0 ? pair[0] << 4 | pair[1] >> 4 : (pair[1] & 15) << 8 | pair[2];
      return static_cast<std::uint8_t>(std::min(bits, 255));
    }
    return header_.bits == 16 ? value16(from + 2 * number) : value32(from + 4 * number);
  }

  // libtiff gives samples in the byte order of this machine.
  std::uint8_t value16(const std::uint8_t* from) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    if (!header_.is_grey()) return static_cast<std::uint8_t>(bits >> 8);
    if (header_.samples > 1) return static_cast<std::uint8_t>(bits >> 8);
    if (header_.format == SAMPLEFORMAT_INT && (bits & 0x8000U) != 0) return 0;
    return static_cast<std::uint8_t>(std::min<int>(bits, 255));
  }
  std::uint8_t value32(const std::uint8_t* from) const {
    if (header_.format == SAMPLEFORMAT_IEEEFP) {
      float number = 0;
      std::memcpy(&number, from, sizeof number);
      return std::isnan(number) ? 0 : static_cast<std::uint8_t>(std::clamp(number, 0.0F, 255.0F));
    }
    std::int32_t number = 0;
    std::memcpy(&number, from, sizeof number);
    return static_cast<std::uint8_t>(std::clamp(number, 0, 255));
  }

  void finish_row(std::uint8_t* pixel) {
    if (header_.colors == PHOTOMETRIC_PALETTE) load_palette();
    for (int x = 0; x < image_.width(); ++x, pixel += Image::kBytesPerPixel) {
      switch (header_.colors) {
        case PHOTOMETRIC_PALETTE: std::memcpy(pixel, palette_[pixel[0]].data(), 3); break;
        case PHOTOMETRIC_SEPARATED: cmyk_to_rgb(pixel); break;
        case PHOTOMETRIC_MINISWHITE:
        case PHOTOMETRIC_MINISBLACK: grey_to_rgb(pixel); break;
        default:
          if (header_.associated_alpha && header_.samples > 3) divide_by_alpha(pixel, 3, pixel[3]);
      }
      pixel[3] = 255;
    }
  }

  void load_palette() {
    if (!palette_.empty()) return;
    palette_.resize(256);
    std::uint16_t* channels[3] = {};
    if (TIFFGetField(tiff_, TIFFTAG_COLORMAP, &channels[0], &channels[1], &channels[2]) != 1) return;
    for (std::size_t i = 0; i < std::size_t{1} << header_.bits; ++i) {
      for (std::size_t c = 0; c < 3; ++c) palette_[i][c] = static_cast<std::uint8_t>(channels[c][i] >> 8);
    }
  }

  void grey_to_rgb(std::uint8_t* pixel) const {
    std::uint8_t level = pixel[0];
    if (header_.bits < 8) level = static_cast<std::uint8_t>(level * 255 / ((1 << header_.bits) - 1));
    if (header_.colors == PHOTOMETRIC_MINISWHITE && header_.bits <= 8) level = static_cast<std::uint8_t>(255 - level);
    pixel[0] = level;
    if (header_.associated_alpha && header_.samples > 1) divide_by_alpha(pixel, 1, pixel[1]);
    pixel[1] = pixel[2] = pixel[0];
  }

  static void divide_by_alpha(std::uint8_t* pixel, int channels, int alpha) {
    for (int c = 0; c < channels; ++c) {
      pixel[c] = static_cast<std::uint8_t>(alpha == 0 ? 0 : std::min(pixel[c] * 255 / alpha, 255));
    }
  }

  static void cmyk_to_rgb(std::uint8_t* pixel) {
    const int rest = 255 - pixel[3];
    for (int c = 0; c < 3; ++c) {
      const int product = pixel[c] * rest + 128;
      pixel[c] = static_cast<std::uint8_t>(std::clamp(rest - (((product >> 8) + product) >> 8), 0, 255));
    }
  }

  TIFF* tiff_;
  const TiffHeader& header_;
  Image& image_;
  std::vector<std::uint8_t> buffer_;
  std::vector<std::array<std::uint8_t, 3>> palette_;
};

// libtiff's own conversion to RGB, for YCbCr that is not JPEG.
bool read_rgba(TIFF* tiff, const TiffHeader& header, Image& image) {
  std::vector<std::uint32_t> pixels(std::size_t{header.width} * header.height);
  // The pixels as they are stored: orientation is applied afterwards, for all kinds of files alike.
  if (TIFFReadRGBAImageOriented(tiff, header.width, header.height, pixels.data(), header.orientation, 1) != 1)
    return false;
  for (int y = 0; y < image.height(); ++y) {
    const std::uint32_t* from = pixels.data() + static_cast<std::size_t>(y) * header.width;
    std::uint8_t* to = image.row(y);
    for (int x = 0; x < image.width(); ++x, to += Image::kBytesPerPixel) {
      to[0] = static_cast<std::uint8_t>(TIFFGetR(from[x]));
      to[1] = static_cast<std::uint8_t>(TIFFGetG(from[x]));
      to[2] = static_cast<std::uint8_t>(TIFFGetB(from[x]));
      to[3] = 255;
    }
  }
  return true;
}

}  // namespace

Status decode_tiff(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image) {
  Source source(bytes);
  const auto tiff = source.open();
  if (!tiff) return source.corrupt("its header is damaged or cut short");
  const TiffHeader header = header_of(tiff.get());
  LOCKSTEP_RETURN_IF_ERROR(check_size(header.width, header.height, options));
  LOCKSTEP_RETURN_IF_ERROR(check_tile(tiff.get(), options));
  LOCKSTEP_RETURN_IF_ERROR(check(header));
  const bool jpeg_colors = header.compression == COMPRESSION_JPEG && !header.is_separate();
  const bool rgba = header.colors == PHOTOMETRIC_YCBCR && !jpeg_colors;
  if (header.colors == PHOTOMETRIC_YCBCR && jpeg_colors) {
    TIFFSetField(tiff.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  }
  if (header.compression == COMPRESSION_ADOBE_DEFLATE || header.compression == COMPRESSION_DEFLATE) {
    // Where a strip unpacks to more than its rows, the faster library leaves rows unwritten, and libtiff says nothing.
    TIFFSetField(tiff.get(), TIFFTAG_DEFLATE_SUBCODEC, DEFLATE_SUBCODEC_ZLIB);
  }
  image.reset(static_cast<int>(header.width), static_cast<int>(header.height));
  const bool read = rgba ? read_rgba(tiff.get(), header, image) : Unpacker(tiff.get(), header, image).unpack();
  if (!read || source.has_undefined_pixels()) return source.corrupt("its pixels are damaged or cut short");
  apply_orientation(header.orientation, image);
  return {};
}

Result<ImageSize> tiff_size(std::span<const std::uint8_t> bytes) {
  Source source(bytes);
  const auto tiff = source.open();
  if (!tiff) return source.corrupt("its header is damaged or cut short").with_context("TIFF");
  const TiffHeader header = header_of(tiff.get());
  constexpr std::uint32_t kMost = 0x7fffffff;
  return upright_size(header.orientation, {static_cast<int>(std::min(header.width, kMost)),
                                           static_cast<int>(std::min(header.height, kMost))});
}

}  // namespace lockstep::data
