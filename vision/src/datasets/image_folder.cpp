#include "lockstep/datasets/image_folder.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

std::shared_ptr<const FolderIndex> index_or_throw(const std::filesystem::path& root,
                                                  const FolderIndexOptions& options) {
  return std::make_shared<const FolderIndex>(value_or_throw(index_image_folder(root, options)));
}

}  // namespace

ImageFolder::ImageFolder(const std::filesystem::path& root, Compose transform, const ImageFolderOptions& options)
    : ImageDataset(std::move(transform), options.image),
      index_(index_or_throw(root, options.index)),
      loader_(options.loader),
      target_transform_(options.target_transform) {}

Result<std::span<const std::uint8_t>> ImageFolder::read_picture(std::int64_t index,
                                                                std::vector<std::uint8_t>& scratch) const {
  const std::string& path = index_->samples[static_cast<std::size_t>(index)].path;
  const Status status = loader_ ? load(path, scratch) : read_image_file(path, scratch);
  if (!status.ok()) return status;
  return std::span<const std::uint8_t>(scratch);
}

// As a PPM file, so that its pixels take the way of all others through the transforms.
Status ImageFolder::load(const std::string& path, std::vector<std::uint8_t>& scratch) const {
  Image picture;
  try {
    picture = loader_(path);
  } catch (const DataError& error) {
    return Status(error.code(), error.what()).with_context(printable(path));
  }
  if (picture.empty()) {
    return Status(ErrorCode::kCorrupt, "the folder's loader gave a picture without pixels")
        .with_context(printable(path));
  }
  const std::string header = fmt::format("P6 {} {} 255\n", picture.width(), picture.height());
  const std::vector<std::uint8_t> pixels = packed_bytes(picture);
  scratch.assign(header.begin(), header.end());
  scratch.insert(scratch.end(), pixels.begin(), pixels.end());
  return {};
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  const std::int64_t label = index_->samples[static_cast<std::size_t>(index)].label;
  return target_transform_ ? target_transform_(label) : label;
}

std::string ImageFolder::name(std::int64_t index) const {
  return index_->samples[static_cast<std::size_t>(index)].path;
}

}  // namespace lockstep::data
