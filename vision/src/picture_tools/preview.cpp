#include "picture_tools/preview.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "image/memory_errors.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/data/errors.h"
#include "lockstep/image/decode.h"
#include "lockstep/image/folder_index.h"
#include "picture_tools/thumbnail.h"
#include "picture_tools/web_page.h"

namespace lockstep::data {
namespace {

// A name is as wide as the pictures above it.
constexpr std::string_view kStyle =
    "body{margin:12px;background:#202020;color:#ebebeb;font:13px system-ui,sans-serif;display:flex;flex-wrap:wrap;"
    "gap:12px}figure{margin:0}figure div{display:flex;flex-wrap:wrap;gap:4px}"
    "figcaption{width:0;min-width:100%;overflow-wrap:anywhere}";

// Takes one sample of each class in turn, and leaves out classes that have no more.
std::vector<std::size_t> in_turn(const FolderIndex& index, std::size_t count) {
  std::vector<std::vector<std::size_t>> of_class(index.classes.size());
  for (std::size_t i = 0; i < index.samples.size(); ++i) {
    of_class[static_cast<std::size_t>(index.samples[i].label)].push_back(i);
  }
  std::vector<std::size_t> chosen;
  for (std::size_t round = 0; chosen.size() < std::min(count, index.samples.size()); ++round) {
    for (const std::vector<std::size_t>& samples : of_class) {
      if (round < samples.size() && chosen.size() < count) chosen.push_back(samples[round]);
    }
  }
  return chosen;
}

// The picture after the transforms; of several crops the first one. Throws DataError.
Image transformed(ImageSize size, std::span<const std::uint8_t> bytes, const Compose& transform, const SampleKey& key) {
  const SamplePlan plan = transform.draw(size, key);
  const SampleShape shape = Compose::shape_of(plan);
  std::vector<std::uint8_t> planes(shape.bytes());
  transform.apply(plan, bytes, {}, planes.data());
  Image image(shape.width, shape.height);
  const std::size_t plane = static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.height);
  for (std::size_t i = 0; i < plane; ++i) {
    std::uint8_t* pixel = image.row(0) + i * Image::kBytesPerPixel;
    for (std::size_t c = 0; c < 3; ++c) pixel[c] = planes[(shape.channels == 1 ? 0 : c) * plane + i];
    pixel[3] = 0;
  }
  return image;
}

// The <figure> of one sample.
Result<std::string> figure(const FolderIndex& index, std::size_t i, const Compose& transform,
                           const PreviewOptions& options) {
  const FolderIndex::Sample& sample = index.samples[i];
  std::vector<std::uint8_t> bytes;
  LOCKSTEP_RETURN_IF_ERROR(read_image_file(sample.path, bytes));
  const Result<ImageSize> size = image_size(bytes, DecodeOptions{});
  if (!size.ok()) return size.status().with_context(printable(sample.path));
  std::string text = fmt::format("<figure title='{}'><div>", escaped(sample.path));
  try {
    for (int e = 0; e < options.epochs; ++e) {
      const SampleKey key{options.seed, options.epoch + e, static_cast<std::int64_t>(i)};
      LOCKSTEP_ASSIGN_OR_RETURN(const auto jpeg,
                                thumbnail(transformed(size.value(), bytes, transform, key), options.cell));
      text += picture_element(to_base64(jpeg));
    }
  } catch (const DataError& error) {
    return Status(error.code(), error.what()).with_context(printable(sample.path));
  }
  return text + fmt::format("</div><figcaption>{}</figcaption></figure>\n",
                            escaped(index.classes[static_cast<std::size_t>(sample.label)]));
}

Status check(const PreviewOptions& options) {
  constexpr std::int64_t kMostPictures = 100'000;  // 1 GB or less, with pictures of the usual size
  if (options.samples >= 1 && options.epochs >= 1 && options.epoch >= 0 && options.cell >= 1 &&
      std::int64_t{options.samples} * options.epochs <= kMostPictures) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          fmt::format("expected 1 to {} pictures (samples times epochs), epochs from 0 on, and pictures of at least 1 "
                      "pixel; got {} samples in {} epochs from {}, of {} pixels",
                      kMostPictures, options.samples, options.epochs, options.epoch, options.cell)};
}

Status append(AtomicFile& file, std::string_view text) {
  return file.append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace

Result<PreviewSummary> write_preview(const std::filesystem::path& folder, const std::filesystem::path& file,
                                     const Compose& transform, const PreviewOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(check(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const FolderIndex index, index_image_folder(folder));
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile out, AtomicFile::create(file));
  LOCKSTEP_RETURN_IF_ERROR(append(out, page_head(folder.native(), kStyle) + "\n"));
  PreviewSummary summary;
  for (const std::size_t i : in_turn(index, static_cast<std::size_t>(options.samples))) {
    const Result<std::string> made =
        or_out_of_memory(index.samples[i].path, [&] { return figure(index, i, transform, options); });
    if (made.ok()) {
      ++summary.samples;
      LOCKSTEP_RETURN_IF_ERROR(append(out, made.value()));
    } else {
      summary.left_out.push_back(made.status().message());
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(append(out, "</body></html>\n"));
  LOCKSTEP_RETURN_IF_ERROR(out.commit());
  return summary;
}

}  // namespace lockstep::data
