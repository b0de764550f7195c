// JPEG, PNG, BMP, WebP and PPM (with PGM and PBM) into pixels, the same pixels as PIL's Image.open(path).convert("RGB")
// gives: greyscale, palette, CMYK and 16-bit pictures become 8-bit RGB, alpha is dropped, the first frame of an
// animation is taken. What a file is, its content says, not its name.
//
// Torch-free; errors are values that say what is wrong with which byte or file. All functions may be called from
// several threads at once; they block for the file and the decoding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

enum class ImageFormat { kJpeg, kPng, kBmp, kWebp, kPpm };
std::string_view to_string(ImageFormat format);

// From the first bytes. nullopt: none of these.
std::optional<ImageFormat> image_format(std::span<const std::uint8_t> bytes);

struct DecodeOptions {
  // Pictures with more pixels are refused before memory is taken for them (kCorrupt): a file of a few kilobytes can
  // claim any size. The default is where PIL refuses too; 4 bytes of memory a pixel.
  std::int64_t max_pixels = 178'956'970;

  // Turns the picture as the camera's EXIF tag asks (JPEG). Off as in PIL and torchvision, which ignore the tag unless
  // asked.
  bool apply_orientation = false;

  // Refuses JPEG files whose compressed data is damaged but can be decoded to something; PIL accepts them silently.
  // Files that end too early are refused always.
  bool strict = false;
};

// kCorrupt (truncated, damaged, too large), kUnsupported (none of the formats, or an odd variant of one), kIo (not
// enough memory).
Result<Image> decode_image(std::span<const std::uint8_t> bytes, const DecodeOptions& options = {});
// Messages begin with the path; also kNotFound, kPermission, kIo. An empty file is kCorrupt.
Result<Image> decode_image(const std::filesystem::path& path, const DecodeOptions& options = {});

// Width and height from the header alone, as decode_image without apply_orientation would give them. Sides are positive
// (else kCorrupt); does not look at max_pixels.
Result<ImageSize> image_size(std::span<const std::uint8_t> bytes);
// Reads the beginning of the file, as far as needed.
Result<ImageSize> image_size(const std::filesystem::path& path);
// As decode_image with these options would give them: turned when asked, kCorrupt above max_pixels.
Result<ImageSize> image_size(std::span<const std::uint8_t> bytes, const DecodeOptions& options);

// The whole file, in memory that is reused. kNotFound, kPermission, kIo; kCorrupt for an empty file. Messages begin
// with the path.
Status read_image_file(const std::filesystem::path& path, std::vector<std::uint8_t>& bytes);

}  // namespace lockstep::data
