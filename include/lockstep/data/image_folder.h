// A folder with a subfolder of pictures for each class, like torchvision's ImageFolder: the same classes, indices and
// order of samples. TIFF files are not supported.
//
//   ImageFolder train("imagenet/train", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{}, ToTensor{}}));
//   DataLoader loader(std::move(train), {.batch_size = 64, .shuffle = true, .num_workers = 4});
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/image/folder_index.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::data {

struct ImageFolderOptions {
  ImageOptions image = {};
  FolderIndexOptions index = {};
};

class ImageFolder : public ImageDataset {
 public:
  // Indexes the folder, and blocks until it is done (100,000 files take some tenths of a second). Throws the errors of
  // index_image_folder as DataError.
  explicit ImageFolder(const std::filesystem::path& root, Compose transform = Compose({ToTensor{}}),
                       const ImageFolderOptions& options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(index_->samples.size()); }
  const std::vector<std::string>& classes() const { return index_->classes; }
  const std::map<std::string, std::int64_t>& class_to_idx() const { return index_->class_to_idx; }
  const std::vector<FolderIndex::Sample>& samples() const { return index_->samples; }

 protected:
  Result<std::span<const std::uint8_t>> read_picture(std::int64_t index,
                                                     std::vector<std::uint8_t>& scratch) const override;
  std::int64_t label(std::int64_t index) const override;
  std::string name(std::int64_t index) const override;

 private:
  std::shared_ptr<const FolderIndex> index_;
};

}  // namespace lockstep::data
