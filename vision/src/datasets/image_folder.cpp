#include "lockstep/datasets/image_folder.h"

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

Result<Picture> ImageFolder::read_picture(std::int64_t index, std::vector<std::uint8_t>& scratch) const {
  const std::string& path = index_->samples[static_cast<std::size_t>(index)].path;
  if (loader_) return load(path);
  LOCKSTEP_RETURN_IF_ERROR(read_image_file(path, scratch));
  return Picture(std::span<const std::uint8_t>(scratch));
}

Result<Picture> ImageFolder::load(const std::string& path) const {
  try {
    Image picture = loader_(path);
    if (!picture.empty()) return Picture(std::move(picture));
  } catch (const DataError& error) {
    return Status(error.code(), error.what()).with_context(printable(path));
  }
  return Status(ErrorCode::kCorrupt, "the folder's loader gave a picture without pixels").with_context(printable(path));
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  const std::int64_t label = index_->samples[static_cast<std::size_t>(index)].label;
  return target_transform_ ? target_transform_(label) : label;
}

std::string ImageFolder::name(std::int64_t index) const {
  return index_->samples[static_cast<std::size_t>(index)].path;
}

}  // namespace lockstep::data
