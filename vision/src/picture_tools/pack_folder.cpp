#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "image/decoders.h"
#include "image/memory_errors.h"
#include "image/resample.h"
#include "lockstep/image/decode.h"
#include "lockstep/image/folder_index.h"
#include "lockstep/picture_tools/pack.h"
#include "picture_tools/in_parallel.h"
#include "picture_tools/thumbnail.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kAtOnce = 256;  // pictures that are prepared in parallel, then written

struct Prepared {
  Status status;
  std::vector<std::uint8_t> bytes;
  std::uint64_t bytes_before = 0;
  bool resized = false;
};

// As in torchvision's Resize(side): the longer side is rounded down.
ImageSize shrunk(ImageSize size, int side) {
  if (size.width <= size.height) return {side, static_cast<int>(std::int64_t{side} * size.height / size.width)};
  return {static_cast<int>(std::int64_t{side} * size.width / size.height), side};
}

Status prepare(const std::string& path, const PackOptions& options, Prepared& out) {
  LOCKSTEP_RETURN_IF_ERROR(read_image_file(path, out.bytes));
  out.bytes_before = out.bytes.size();
  const Result<ImageSize> size = image_size(out.bytes);
  if (!size.ok()) return size.status().with_context(printable(path));
  if (options.shorter_side == 0 && !options.skip_corrupt) return {};
  const Result<Image> image = decode_image(out.bytes);
  if (!image.ok()) return image.status().with_context(printable(path));
  if (options.shorter_side == 0 || std::min(size.value().width, size.value().height) <= options.shorter_side) return {};
  const Image small = resized(image.value(), shrunk(size.value(), options.shorter_side), Interpolation::kBilinear);
  Result<std::vector<std::uint8_t>> encoded = encode_jpeg(small, options.quality, exif_orientation(out.bytes));
  if (!encoded.ok()) return encoded.status().with_context(printable(path));
  out.bytes = std::move(encoded).value();
  out.resized = true;
  return {};
}

Status check(const PackOptions& options) {
  if (options.shorter_side >= 0 && options.quality >= 1 && options.quality <= 100 && options.threads >= 0) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("expected shorter_side >= 0, quality 1 to 100 and threads >= 0, got {}, {} and {}",
                      options.shorter_side, options.quality, options.threads)};
}

}  // namespace

Result<PackSummary> pack_folder(const std::filesystem::path& folder, const std::filesystem::path& file,
                                const PackOptions& options,
                                const std::function<void(std::int64_t done, std::int64_t of)>& progress) {
  LOCKSTEP_RETURN_IF_ERROR(check(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const FolderIndex index, index_image_folder(folder));
  LOCKSTEP_ASSIGN_OR_RETURN(PackWriter writer, PackWriter::create(file, index.classes));
  PackSummary summary{.classes = static_cast<std::int64_t>(index.classes.size())};
  const auto total = static_cast<std::int64_t>(index.samples.size());
  std::vector<Prepared> prepared(static_cast<std::size_t>(std::min(kAtOnce, total)));
  for (std::int64_t begin = 0; begin < total; begin += kAtOnce) {
    const std::int64_t end = std::min(total, begin + kAtOnce);
    in_parallel(begin, end, thread_count(options.threads), [&](std::int64_t i) {
      Prepared& out = prepared[static_cast<std::size_t>(i - begin)];
      out.resized = false;
      const std::string& path = index.samples[static_cast<std::size_t>(i)].path;
      out.status = or_out_of_memory(path, [&] { return prepare(path, options, out); });
    });
    for (std::int64_t i = begin; i < end; ++i) {
      const FolderIndex::Sample& sample = index.samples[static_cast<std::size_t>(i)];
      const Prepared& picture = prepared[static_cast<std::size_t>(i - begin)];
      if (!picture.status.ok()) {
        if (!options.skip_corrupt) return picture.status;
        summary.left_out.push_back(picture.status.message());
        continue;
      }
      const std::string name = std::filesystem::path(sample.path).lexically_relative(folder).native();
      LOCKSTEP_RETURN_IF_ERROR(writer.add(picture.bytes, sample.label, name));
      ++summary.pictures;
      summary.resized += picture.resized ? 1 : 0;
      summary.bytes_before += picture.bytes_before;
    }
    if (progress) progress(end, total);
  }
  if (summary.pictures == 0) {  // such a pack would take the place of a good one
    return Status(ErrorCode::kCorrupt, fmt::format("{}: none of {} pictures can be decoded; the first is {}",
                                                   printable(folder.native()), total, summary.left_out.front()));
  }
  LOCKSTEP_RETURN_IF_ERROR(writer.finish());
  summary.bytes_after = writer.bytes();
  return summary;
}

}  // namespace lockstep::data
