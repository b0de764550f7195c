#include "lockstep/data/image_folder.h"

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

std::shared_ptr<const FolderIndex> index_or_throw(const std::filesystem::path& root,
                                                  const FolderIndexOptions& options) {
  return std::make_shared<const FolderIndex>(value_or_throw(index_image_folder(root, options)));
}

}  // namespace

ImageFolder::ImageFolder(const std::filesystem::path& root, Compose transform, const ImageFolderOptions& options)
    : ImageDataset(std::move(transform), options.image), index_(index_or_throw(root, options.index)) {}

Result<std::span<const std::uint8_t>> ImageFolder::read_picture(std::int64_t index,
                                                                std::vector<std::uint8_t>& scratch) const {
  Status status = read_image_file(index_->samples[static_cast<std::size_t>(index)].path, scratch);
  if (!status.ok()) return status;
  return std::span<const std::uint8_t>(scratch);
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  return index_->samples[static_cast<std::size_t>(index)].label;
}

std::string ImageFolder::name(std::int64_t index) const {
  return index_->samples[static_cast<std::size_t>(index)].path;
}

}  // namespace lockstep::data
