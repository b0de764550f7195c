// PNG with libpng, to 8 bits as PIL does: 16-bit colour keeps its high byte; 16-bit grey is limited to 255, as in PIL's
// conversion to RGB. Gamma and colour profiles are ignored. What PIL forgives is forgiven: unknown chunks, a wrong zlib
// window, an unknown compression or interlace method, and behind the first pixels wrong checksums and a missing end.
#include <fmt/format.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <string_view>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

// libpng reports errors by longjmp into decode(): no object with a destructor may be alive in between.
class PngDecoder {
 public:
  PngDecoder(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image)
      : bytes_(bytes), options_(options), image_(image) {
    set_methods();
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, warn);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  Status decode() {
    if (info_ == nullptr) return {ErrorCode::kInternal, "libpng could not be set up"};
    if (setjmp(jump_) == 0) {
      read_header();
      const auto width = static_cast<int>(png_get_image_width(png_, info_));
      const auto height = static_cast<int>(png_get_image_height(png_, info_));
      if (status_ = check_size(width, height, options_); !status_.ok()) return status_;
      convert();
      image_.reset(width, height);
      if (png_get_rowbytes(png_, info_) > row_limit()) png_error(png_, "rows are longer than expected");
      read_rows();
    } else if (!has_all_rows()) {
      return {ErrorCode::kCorrupt, fmt::format("{} (at about byte {} of {})", text_, position_, bytes_.size())};
    }
    if (wide_) widen_grey();
    return check_later_chunks();
  }

 private:
  void read_header() {
    png_set_read_fn(png_, this, read);
    // Text and profiles are not needed, and may unpack to gigabytes.
    png_set_chunk_malloc_max(png_, 8 << 20);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_user_chunk_fn(png_, nullptr, [](png_structp, png_unknown_chunkp) { return 1; });  // also critical ones
    png_set_option(png_, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON);  // whatever the header of the stream says
    png_read_info(png_, info_);
    png_set_crc_action(png_, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
  }

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::snprintf(self->text_, sizeof(self->text_), "%s", message);
    std::longjmp(self->jump_, 1);
  }
  static void warn(png_structp /*png*/, png_const_charp /*message*/) {}
  static void read(png_structp png, png_bytep out, std::size_t count) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self->bytes_.size() - self->position_) png_error(png, "the file is cut short");
    const bool in_header = self->position_ + count <= self->header_.size();  // libpng asks for parts of one chunk
    std::memcpy(out, (in_header ? self->header_.data() : self->bytes_.data()) + self->position_, count);
    self->position_ += count;
  }

  // Where the name and the checksum of the first chunk begin.
  static constexpr std::size_t kName = 12;
  static constexpr std::size_t kChecksum = 29;

  // PIL takes every compression method for deflate, and every interlace method but 0 for Adam7. libpng refuses others.
  void set_methods() {
    std::memcpy(header_.data(), bytes_.data(), std::min(bytes_.size(), header_.size()));
    if (std::memcmp(header_.data() + kName, "IHDR", 4) != 0 || checksum_of_header() != number_at(kChecksum)) return;
    header_[26] = 0;
    header_[28] = header_[28] == 0 ? 0 : 1;
    const std::uint32_t sum = checksum_of_header();
    for (std::size_t i = 0; i < 4; ++i) header_[kChecksum + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
  }
  std::uint32_t checksum_of_header() const {
    return static_cast<std::uint32_t>(::crc32_z(0, header_.data() + kName, kChecksum - kName));
  }
  std::uint32_t number_at(std::size_t at) const {
    return std::uint32_t{header_[at]} << 24 | std::uint32_t{header_[at + 1]} << 16 |
           std::uint32_t{header_[at + 2]} << 8 | std::uint32_t{header_[at + 3]};
  }

  void convert() {
    const int depth = png_get_bit_depth(png_, info_);
    const int type = png_get_color_type(png_, info_);
    wide_ = depth == 16 && type == PNG_COLOR_TYPE_GRAY;
    passes_ = png_set_interlace_handling(png_);
    if (!wide_) {
      if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
      if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png_);
      if (depth == 16) png_set_strip_16(png_);
      if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
      // A pixel needs a fourth byte: the alpha channel, or a filler.
      if ((type & PNG_COLOR_MASK_ALPHA) == 0 && !(type == PNG_COLOR_TYPE_PALETTE && has_transparency())) {
        png_set_filler(png_, 0xff, PNG_FILLER_AFTER);
      }
    }
    png_read_update_info(png_, info_);
  }

  bool has_transparency() const { return png_get_valid(png_, info_, PNG_INFO_tRNS) != 0; }
  std::size_t row_limit() const { return image_.row_bytes(); }

  // libpng gives out the last row before it reads what is left of the compressed data.
  bool has_all_rows() {
    if (!reads_rows_) return false;
    constexpr int kEndOfPasses = 7;
    if (passes_ > 1) return png_get_current_pass_number(png_) >= kEndOfPasses;
    return png_get_current_row_number(png_) >= static_cast<png_uint_32>(image_.height());
  }

  // A file may end between two chunks, but not within one. What does not begin as a chunk is no chunk.
  Status check_later_chunks() const {
    constexpr std::size_t kSignature = 8;
    constexpr std::size_t kHead = 8;      // length and name
    constexpr std::size_t kChecksum = 4;  // behind the content
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    for (std::size_t at = kSignature; at <= bytes_.size() && bytes_.size() - at >= kHead;) {
      const std::string_view name(reinterpret_cast<const char*>(bytes_.data()) + at + 4, 4);
      if (name == "IEND" || !std::all_of(name.begin(), name.end(), is_letter)) return {};
      const std::size_t length = std::size_t{bytes_[at]} << 24 | std::size_t{bytes_[at + 1]} << 16 |
                                 std::size_t{bytes_[at + 2]} << 8 | std::size_t{bytes_[at + 3]};
      if (length > bytes_.size() - at - kHead && name != "IDAT") {
        return {ErrorCode::kCorrupt, fmt::format("the file is cut short in its chunk {} at byte {}", name, at)};
      }
      at += kHead + length + kChecksum;
    }
    return {};
  }

  void read_rows() {
    reads_rows_ = true;
    for (int pass = 0; pass < passes_; ++pass) {
      for (int y = 0; y < image_.height(); ++y) png_read_row(png_, image_.row(y), nullptr);
    }
  }

  // Pixels of 2 bytes become pixels of 4, in place: from the right, so that none is overwritten too early.
  void widen_grey() {
    for (int y = 0; y < image_.height(); ++y) {
      std::uint8_t* row = image_.row(y);
      for (auto x = static_cast<std::size_t>(image_.width()); x-- > 0;) {
        const std::uint8_t value = row[2 * x] != 0 ? 255 : row[2 * x + 1];
        std::memset(row + 4 * x, value, 4);
      }
    }
  }

  std::span<const std::uint8_t> bytes_;
  std::array<std::uint8_t, 33> header_{};  // the first bytes of the file, up to the end of its first chunk
  const DecodeOptions& options_;
  Image& image_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char text_[256] = "";
  std::size_t position_ = 0;
  Status status_;
  bool wide_ = false;
  bool reads_rows_ = false;
  int passes_ = 1;
};

}  // namespace

Status decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image) {
  return PngDecoder(bytes, options, image).decode();
}

Result<ImageSize> png_size(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kHeader = 24;  // signature, length, "IHDR", width, height
  if (bytes.size() < kHeader || std::memcmp(bytes.data() + 12, "IHDR", 4) != 0) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("PNG: expected a header of {} bytes, found none in {} bytes", kHeader, bytes.size()));
  }
  const auto number = [&](std::size_t at) {
    return static_cast<int>((bytes[at] & 0x7fU) << 24 | unsigned{bytes[at + 1]} << 16 | unsigned{bytes[at + 2]} << 8 |
                            bytes[at + 3]);
  };
  return ImageSize{number(16), number(20)};
}

}  // namespace lockstep::data
