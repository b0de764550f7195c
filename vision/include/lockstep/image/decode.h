// Decodes JPEG, PNG, BMP, WebP, PPM (with PGM and PBM) and TIFF to the same pixels as PIL's
// Image.open(path).convert("RGB"): greyscale, palette, CMYK and 16-bit pictures become 8-bit RGB; alpha is dropped; an
// animation gives its first frame, a TIFF file its first page. The format follows from the content of a file, not from
// its name.
//
// Torch-free. Errors are values that name the byte or the file. Several threads may call all functions at once; they
// block for the file and the decoding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

enum class ImageFormat { kJpeg, kPng, kBmp, kWebp, kPpm, kTiff };
std::string_view to_string(ImageFormat format);

// Returns the format of a file with these first bytes; nullopt: none of the formats above.
std::optional<ImageFormat> image_format(std::span<const std::uint8_t> bytes);

struct DecodeOptions {
  // Pictures with more pixels are refused before memory is allocated for them (kCorrupt): a file of a few kilobytes can
  // claim any size. The default is PIL's limit for errors. A pixel takes 4 bytes of memory. Sides of more than 2^28
  // pixels are refused with any limit.
  std::int64_t max_pixels = 178'956'970;

  // Turns a JPEG as the EXIF tag of the camera says, as PIL's exif_transpose does (which also reads XMP). Off by
  // default: PIL and torchvision ignore the tag too.
  // TIFF files are always turned as their own tag says, as in PIL.
  bool apply_orientation = false;

  // Refuses JPEG files whose compressed data is damaged but can still be decoded, or that have no end marker; PIL
  // accepts them silently. Files that end before their last row are always refused.
  bool strict = false;
};

// Errors: kCorrupt (truncated, damaged, too large), kUnsupported (another format, or a rare variant of one), kIo (not
// enough memory).
Result<Image> decode_image(std::span<const std::uint8_t> bytes, const DecodeOptions& options = {});
// decode_image for a file of at most kMaxFileBytes. Further errors: kNotFound, kPermission, kIo. Messages begin with
// the path. An empty file is kCorrupt.
Result<Image> decode_image(const std::filesystem::path& path, const DecodeOptions& options = {});

// Width and height from the header, as decode_image gives them without apply_orientation. Sides are 1 to 2^28
// (otherwise kCorrupt). There is no limit of pixels.
Result<ImageSize> image_size(std::span<const std::uint8_t> bytes);
// Reads only the beginning of the file if that is enough.
Result<ImageSize> image_size(const std::filesystem::path& path);
// The size of decode_image's result with the same options: turned with apply_orientation, kCorrupt above max_pixels.
Result<ImageSize> image_size(std::span<const std::uint8_t> bytes, const DecodeOptions& options);

// Files with more bytes are refused (kUnsupported): a sparse file can claim any size.
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

// Reads the whole file and reuses the memory of `bytes`. Errors: kNotFound, kPermission, kIo (also for not enough
// memory), kCorrupt for an empty file, kUnsupported above kMaxFileBytes or when the first bytes are not those of a
// picture. Messages begin with the path.
Status read_image_file(const std::filesystem::path& path, std::vector<std::uint8_t>& bytes);

}  // namespace lockstep::data
