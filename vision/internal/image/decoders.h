// The decoders behind decode.h, one for each format, and their common functions.
//
// A decoder reuses the memory of an Image, and returns the place of the wanted region in it. The JPEG decoder decodes
// little more than the region, the others decode the whole picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "image/view.h"
#include "lockstep/base/status.h"
#include "lockstep/image/decode.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

struct DecodeRequest {
  DecodeOptions options = {};
  // The wanted part, in pixels of the whole picture; empty: the whole picture.
  Box region = {};
  // 1, 2, 4 or 8: a JPEG is decoded to 1/n of its width and height; its region is then rounded outwards. The pixels are
  // not the averages of n x n pixels, but come from the lower frequencies. Other formats ignore it.
  int reduce = 1;
};

struct DecodedRegion {
  View view;          // into the Image that was filled
  Box covered;        // the place of the view, in pixels of the whole picture
  ImageSize picture;  // of the whole picture
  int reduce = 1;     // the reduction that was done
};

// Finds the format from the first bytes. After an error `image` is undefined.
Result<DecodedRegion> decode_region(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image);

Result<DecodedRegion> decode_jpeg(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image);
Status decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_bmp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_webp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_netpbm(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_tiff(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);

Result<ImageSize> jpeg_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> png_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> bmp_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> webp_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> netpbm_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> tiff_size(std::span<const std::uint8_t> bytes);

// Checks that a picture may be decoded: positive sides, and no more pixels than allowed.
Status check_size(std::int64_t width, std::int64_t height, const DecodeOptions& options);

// The orientation in the EXIF data of a JPEG file: 1 to 8, 1 without a tag and for other formats. And functions that
// turn a picture upright.
int exif_orientation(std::span<const std::uint8_t> bytes);
ImageSize upright_size(int orientation, ImageSize size);
void apply_orientation(int orientation, Image& image);

}  // namespace lockstep::data
