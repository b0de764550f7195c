// The decoders behind decode.h, one per format, and what they share.
//
// A decoder fills an Image whose memory it reuses, and answers where in it the wanted region lies: JPEG can leave out
// what lies outside of it, the other formats decode everything.
#pragma once

#include <cstdint>
#include <span>

#include "data/image/view.h"
#include "lockstep/base/status.h"
#include "lockstep/data/image/decode.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

// How exactly a JPEG has to be decoded.
enum class DecodePrecision {
  kExact,  // PIL's pixels
  kFast,   // chroma is not smoothed between pixels, the transform may round worse: a few grey levels at sharp edges
};

struct DecodeRequest {
  DecodeOptions options = {};
  // The part that is wanted, in pixels of the whole picture; empty: all of it.
  Box region = {};
  DecodePrecision precision = DecodePrecision::kExact;
  // Every n-th pixel in both directions: 1, 2, 4 or 8. A JPEG of n > 1 is decoded to that size, averaged over n x n;
  // its region is then rounded outwards. Other formats ignore it.
  int reduce = 1;
};

struct DecodedRegion {
  View view;          // into the Image that was filled
  Box covered;        // what the view shows, in pixels of the whole picture
  ImageSize picture;  // of the whole picture
  int reduce = 1;     // as done
};

// Sniffs the format. Steps over errors of all kinds without leaks; `image` is then undefined.
Result<DecodedRegion> decode_region(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image);

Result<DecodedRegion> decode_jpeg(std::span<const std::uint8_t> bytes, const DecodeRequest& request, Image& image);
Status decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_bmp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_webp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);
Status decode_netpbm(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image);

Result<ImageSize> jpeg_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> png_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> bmp_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> webp_size(std::span<const std::uint8_t> bytes);
Result<ImageSize> netpbm_size(std::span<const std::uint8_t> bytes);

// Whether the picture may be decoded: positive sides, no more pixels than allowed.
Status check_size(std::int64_t width, std::int64_t height, const DecodeOptions& options);

// EXIF's orientation of a JPEG, 1 to 8; 1 when it says nothing. And turning a picture accordingly.
int jpeg_orientation(std::span<const std::uint8_t> bytes);
ImageSize upright_size(int orientation, ImageSize size);
void apply_orientation(int orientation, Image& image);

// The whole file in memory that is reused. kNotFound, kPermission, kIo; kCorrupt for an empty file. At most
// `most_bytes` of it.
Status read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& bytes,
                 std::size_t most_bytes = static_cast<std::size_t>(-1));

}  // namespace lockstep::data
