// Encoded pictures: JPEG, PNG, WebP, BMP, TIFF, PNM, whole and reduced.
#include "fuzz/fuzz.h"
#include "image/encoders.h"
#include "lockstep/image/decode.h"

namespace lockstep::fuzz {

// The first byte has the options.
void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::span<const std::uint8_t> picture(reinterpret_cast<const std::uint8_t*>(bytes.data()) + 1,
                                              bytes.size() - 1);
  data::DecodeOptions options;
  options.max_pixels = 1 << 18;
  options.apply_orientation = (bytes[0] & 1) != 0;
  options.strict = (bytes[0] & 2) != 0;
  const auto size = data::image_size(picture, options);
  const auto image = data::decode_image(picture, options);
  if (!image.ok()) return;
  require(size.ok() && size.value().width == image.value().width() && size.value().height == image.value().height());
}

std::vector<std::string> seeds() {
  const data::Image image = test::make_picture(24, 16, 1);
  std::vector<std::string> all;
  const auto add = [&](const std::vector<std::uint8_t>& bytes) {
    all.push_back(for_parser(0, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  };
  add(test::encode_jpeg(image));
  add(test::with_orientation(test::encode_jpeg(image, {.progressive = true}), 6));
  add(test::encode_png(image));
  add(test::encode_png(image, {.color_type = 6, .interlaced = true}));
  add(test::encode_webp(image));
  add(test::encode_bmp(image));
  add(test::encode_tiff(image));
  all.push_back(for_parser(3, "P6\n2 1\n255\nabcdef"));
  return all;
}

}  // namespace lockstep::fuzz
