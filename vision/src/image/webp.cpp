// WebP with libwebp. Of an animation, the first frame is drawn on its canvas.
#include <fmt/format.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>

#include "image/decoders.h"

namespace lockstep::data {
namespace {

struct DeleteDecoder {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};
struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

Result<WebPBitstreamFeatures> features_of(std::span<const std::uint8_t> bytes) {
  WebPBitstreamFeatures features;
  const VP8StatusCode code = WebPGetFeatures(bytes.data(), bytes.size(), &features);
  if (code == VP8_STATUS_OK) return features;
  return Status(ErrorCode::kCorrupt,
                code == VP8_STATUS_NOT_ENOUGH_DATA
                    ? fmt::format("the file is cut short in its header, after {} bytes", bytes.size())
                    : "its header is damaged");
}

Status decode_animation(std::span<const std::uint8_t> bytes, Image& image) {
  WebPAnimDecoderOptions options;
  WebPAnimDecoderOptionsInit(&options);
  options.color_mode = MODE_RGBA;
  const WebPData data{bytes.data(), bytes.size()};
  const std::unique_ptr<WebPAnimDecoder, DeleteDecoder> decoder(WebPAnimDecoderNew(&data, &options));
  std::uint8_t* canvas = nullptr;
  int timestamp = 0;
  WebPAnimInfo info{};
  if (!decoder || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp) == 0) {
    return {ErrorCode::kCorrupt, "its first frame cannot be decoded: damaged or cut short"};
  }
  if (info.canvas_width != static_cast<std::uint32_t>(image.width()) ||
      info.canvas_height != static_cast<std::uint32_t>(image.height())) {
    return {ErrorCode::kCorrupt, "its canvas has another size than its header says"};
  }
  std::memcpy(image.row(0), canvas, image.row_bytes() * static_cast<std::size_t>(image.height()));
  return {};
}

// The bytes within the picture's chunks, as in PIL: those behind a chunk that is too short do not count.
Status decode_still(std::span<const std::uint8_t> bytes, Image& image) {
  const Status damaged(ErrorCode::kCorrupt, fmt::format("damaged or cut short; it has {} bytes", bytes.size()));
  const WebPData data{bytes.data(), bytes.size()};
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  WebPIterator frame{};  // holds no memory of its own
  if (!demuxer || WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0) return damaged;
  const std::size_t size = image.row_bytes() * static_cast<std::size_t>(image.height());
  const WebPData& content = frame.fragment;
  if (WebPDecodeRGBAInto(content.bytes, content.size, image.row(0), size, static_cast<int>(image.row_bytes())) ==
      nullptr) {
    return damaged;
  }
  return {};
}

}  // namespace

Status decode_webp(std::span<const std::uint8_t> bytes, const DecodeOptions& options, Image& image) {
  const Result<WebPBitstreamFeatures> features = features_of(bytes);
  if (!features.ok()) return features.status();
  const int width = features.value().width;
  const int height = features.value().height;
  LOCKSTEP_RETURN_IF_ERROR(check_size(width, height, options));
  image.reset(width, height);
  if (features.value().has_animation != 0) return decode_animation(bytes, image);
  return decode_still(bytes, image);
}

Result<ImageSize> webp_size(std::span<const std::uint8_t> bytes) {
  const Result<WebPBitstreamFeatures> features = features_of(bytes);
  if (!features.ok()) return features.status().with_context("WebP");
  return ImageSize{features.value().width, features.value().height};
}

}  // namespace lockstep::data
