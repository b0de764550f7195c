// A folder with a subfolder of pictures for each class, like torchvision's ImageFolder: the same classes, indices and
// order of samples.
//
//   ImageFolder train("imagenet/train", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{}, ToTensor{}}));
//   DataLoader loader(std::move(train), {.batch_size = 64, .shuffle = true, .num_workers = 4});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/datasets/image_dataset.h"
#include "lockstep/image/folder_index.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

struct ImageFolderOptions {
  ImageOptions image = {};
  FolderIndexOptions index = {};
  // Reads one sample instead of the decoder, such as a format of your own; several threads call it at once. A DataError
  // that it throws is treated as a corrupt file (ImageOptions::on_corrupt), other exceptions are errors of the sample.
  std::function<Image(const std::string& path)> loader = {};
  // Makes the target of a sample from its class. classes() and class_to_idx() stay those of the folder.
  std::function<std::int64_t(std::int64_t label)> target_transform = {};
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
  Result<Picture> read_picture(std::int64_t index, std::vector<std::uint8_t>& scratch) const override;
  std::int64_t label(std::int64_t index) const override;
  std::string name(std::int64_t index) const override;

 private:
  Result<Picture> load(const std::string& path) const;

  std::shared_ptr<const FolderIndex> index_;
  std::function<Image(const std::string&)> loader_;
  std::function<std::int64_t(std::int64_t)> target_transform_;
};

}  // namespace lockstep::data
