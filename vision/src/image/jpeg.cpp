// JPEG with libjpeg-turbo. For a region, only its rows and columns are decoded. Rows above it are only entropy-decoded
// (the format requires it), rows below it not at all.
//
// libjpeg smooths chroma between neighbouring samples, so the outermost columns of a region would differ from those of
// the whole picture. To be exact, a margin on both sides is decoded too, and left out.
#include <fmt/format.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "base/arithmetic.h"
#include "image/decoders.h"

// jpeglib.h must come first.
#include <jerror.h>

namespace lockstep::data {
namespace {

// The margin in columns: the reach of smoothing, one chroma sample of at most 4 pixels.
constexpr int kMargin = 8;
// The most scans: each takes a pass over all pixels, and a file may have any number. Encoders write about 10.
constexpr int kMostScans = 500;

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  bool strict;
  bool truncated;
  char text[JMSG_LENGTH_MAX];
};

ErrorManager& errors_of(j_common_ptr info) {
  return *reinterpret_cast<ErrorManager*>(info->err);
}

[[noreturn]] void leave_with_error(j_common_ptr info) {
  ErrorManager& errors = errors_of(info);
  errors.base.format_message(info, errors.text);
  std::longjmp(errors.jump, 1);
}

void note_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  ++info->err->num_warnings;
  if (errors_of(info).strict) leave_with_error(info);
}

void print_nothing(j_common_ptr /*info*/) {}

void bound_scans(j_common_ptr info) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  ErrorManager& errors = errors_of(info);
  if (decoder->input_scan_number <= kMostScans) return;
  std::snprintf(errors.text, sizeof(errors.text), "more than %d scans: a damaged or hostile file", kMostScans);
  std::longjmp(errors.jump, 1);
}

void do_nothing(j_decompress_ptr /*info*/) {}

boolean end_of_bytes(j_decompress_ptr info) {
  errors_of(reinterpret_cast<j_common_ptr>(info)).truncated = true;
  std::longjmp(errors_of(reinterpret_cast<j_common_ptr>(info)).jump, 1);
}

void skip_bytes(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > info->src->bytes_in_buffer) end_of_bytes(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

// libjpeg reports errors by longjmp into decode() or size(): no object with a destructor may be alive in between.
class JpegDecoder {
 public:
  JpegDecoder(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image)
      : bytes_(bytes), request_(request), image_(image) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave_with_error;
    errors_.base.emit_message = note_message;
    errors_.base.output_message = print_nothing;
    errors_.strict = request.options.strict;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  Status decode() {
    if (setjmp(errors_.jump) != 0) return failure();
    open();
    if (status_ = check(); !status_.ok()) return status_;
    start();
    // Image::reset may throw: it is not called from inside of libjpeg.
    image_.reset(static_cast<int>(info_.output_width), wanted_.height);
    read_rows();
    return {};
  }

  DecodedRegion result() const {
    const int left = wanted_.left - first_column_;
    View view = View(image_).part({left, wanted_.top - first_row_, wanted_.width, wanted_.height});
    const int n = request_.reduce;
    const int width = static_cast<int>(info_.image_width);
    const int height = static_cast<int>(info_.image_height);
    const Box covered{wanted_.left * n, wanted_.top * n, std::min(wanted_.width * n, width - wanted_.left * n),
                      std::min(wanted_.height * n, height - wanted_.top * n)};
    return {view, covered, {width, height}, n};
  }

  // Reads only the header.
  Result<ImageSize> size() {
    if (setjmp(errors_.jump) != 0) return failure();
    open();
    return ImageSize{static_cast<int>(info_.image_width), static_cast<int>(info_.image_height)};
  }

 private:
  Status failure() const {
    if (errors_.truncated) {
      return {ErrorCode::kCorrupt, fmt::format("JPEG: the file is cut short: its {} bytes end at row {} of {}",
                                               bytes_.size(), info_.output_scanline, info_.image_height)};
    }
    return {ErrorCode::kCorrupt, fmt::format("JPEG: {} (at about byte {} of {})", errors_.text,
                                             bytes_.size() - source_.bytes_in_buffer, bytes_.size())};
  }

  void open() {
    jpeg_create_decompress(&info_);
    source_.init_source = do_nothing;
    source_.fill_input_buffer = end_of_bytes;
    source_.skip_input_data = skip_bytes;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = do_nothing;
    source_.next_input_byte = bytes_.data();
    source_.bytes_in_buffer = bytes_.size();
    info_.src = &source_;
    monitor_.progress_monitor = bound_scans;
    info_.progress = &monitor_;
    jpeg_read_header(&info_, TRUE);
  }

  Status check() const {
    const int components = info_.num_components;
    if (components != 1 && components != 3 && components != 4) {
      return {ErrorCode::kUnsupported, fmt::format("JPEG: expected 1, 3 or 4 colour components, found {}", components)};
    }
    if (Status status = check_size(info_.image_width, info_.image_height, request_.options); !status.ok()) {
      return status.with_context("JPEG");
    }
    const Box& region = request_.region;
    if (!region.empty() && (region.left < 0 || region.top < 0 || region.right() > static_cast<int>(info_.image_width) ||
                            region.bottom() > static_cast<int>(info_.image_height))) {
      return {ErrorCode::kCorrupt, "JPEG: its pixels do not fill the size of its header"};
    }
    return {};
  }

  void start() {
    info_.out_color_space = info_.num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(request_.reduce);
    jpeg_start_decompress(&info_);
    const int width = static_cast<int>(info_.output_width);
    const int height = static_cast<int>(info_.output_height);
    wanted_ = {0, 0, width, height};
    if (request_.region.empty()) return;
    const int n = request_.reduce;
    const Box& region = request_.region;
    wanted_.left = region.left / n;
    wanted_.top = region.top / n;
    wanted_.width = std::min(width, ceil_divide(region.right(), n)) - wanted_.left;
    wanted_.height = std::min(height, ceil_divide(region.bottom(), n)) - wanted_.top;
    JDIMENSION column = static_cast<JDIMENSION>(std::max(0, wanted_.left - kMargin));
    JDIMENSION columns = static_cast<JDIMENSION>(std::min(width, wanted_.right() + kMargin)) - column;
    if (columns < info_.output_width) jpeg_crop_scanline(&info_, &column, &columns);
    first_column_ = static_cast<int>(column) * static_cast<int>(columns < static_cast<JDIMENSION>(width));
    first_row_ = wanted_.top;
  }

  void read_rows() {
    if (first_row_ > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(first_row_));
    for (int y = 0; y < wanted_.height;) {
      // libjpeg returns as many rows as it has ready.
      JSAMPROW rows[16];
      const int count = std::min(16, wanted_.height - y);
      for (int i = 0; i < count; ++i) rows[i] = image_.row(y + i);
      y += static_cast<int>(jpeg_read_scanlines(&info_, rows, static_cast<JDIMENSION>(count)));
    }
    if (info_.num_components == 4) cmyk_to_rgb();
    require_end();
  }

  // A file without an end marker is cut short if rows are missing. This must not depend on the region, so the rows
  // below the region are decoded too. A file with all rows is complete for PIL.
  void require_end() {
    const std::uint8_t* at = source_.next_input_byte;
    const std::uint8_t* const end = at + source_.bytes_in_buffer;
    while (at != end && (at = static_cast<const std::uint8_t*>(
                             std::memchr(at, 0xff, static_cast<std::size_t>(end - at)))) != nullptr) {
      if (at + 1 < end && at[1] == JPEG_EOI) return;
      ++at;
    }
    if (info_.unread_marker == JPEG_EOI || jpeg_input_complete(&info_) != FALSE) return;
    const JDIMENSION rest = info_.output_height - info_.output_scanline;
    if (rest > 0) {
      // Skipping the last row as well would end the decoding instead.
      jpeg_skip_scanlines(&info_, rest - 1);
      JSAMPARRAY row = info_.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&info_), JPOOL_IMAGE,
                                               info_.output_width * Image::kBytesPerPixel, 1);
      jpeg_read_scanlines(&info_, row, 1);
    }
    if (!errors_.strict) return;
    std::snprintf(errors_.text, sizeof(errors_.text), "no end marker follows its last row");
    std::longjmp(errors_.jump, 1);
  }

  // CMYK is inverted, as Adobe writes it. The arithmetic is PIL's.
  void cmyk_to_rgb() {
    for (int y = 0; y < wanted_.height; ++y) {
      std::uint8_t* pixel = image_.row(y);
      for (int x = 0; x < image_.width(); ++x, pixel += 4) {
        const int black = pixel[3];  // 255 - k
        for (int c = 0; c < 3; ++c) {
          const int product = (255 - pixel[c]) * black + 128;
          pixel[c] = static_cast<std::uint8_t>(std::clamp(black - (((product >> 8) + product) >> 8), 0, 255));
        }
      }
    }
  }

  std::span<const std::uint8_t> bytes_;
  const DecodeRequest& request_;
  Image& image_;
  jpeg_decompress_struct info_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr monitor_{};
  ErrorManager errors_{};
  Status status_;
  Box wanted_;
  int first_column_ = 0;  // the column of the picture at the left of the buffer
  int first_row_ = 0;
};

}  // namespace

Result<DecodedRegion> decode_jpeg(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image) {
  JpegDecoder decoder(bytes, request, image);
  if (Status status = decoder.decode(); !status.ok()) return status;
  return decoder.result();
}

Result<ImageSize> jpeg_size(std::span<const std::uint8_t> bytes) {
  const DecodeRequest request;
  Image unused;
  return JpegDecoder(bytes, request, unused).size();
}

}  // namespace lockstep::data
