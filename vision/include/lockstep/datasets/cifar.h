// CIFAR-10 and CIFAR-100 from their binary files (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz), unpacked. The
// samples, their order and their labels are those of torchvision's CIFAR10 and CIFAR100, which read the same pictures
// from Python's files.
//
//   Cifar10 train("data", /*train=*/true, Compose({RandomCrop{32, 4}, RandomHorizontalFlip{}, ToTensor{}}));
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/datasets/image_dataset.h"

namespace lockstep::data {

// Pictures of 32 x 32 in memory (3 KiB each). Transforms work as for an ImageFolder.
class Cifar : public ImageDataset {
 public:
  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  // The name of each label, from the text file beside the pictures; empty without that file.
  const std::vector<std::string>& classes() const { return classes_; }
  const std::vector<std::int64_t>& labels() const { return labels_; }

 protected:
  struct Files {
    std::string folder;
    std::vector<std::string> pictures;
    std::string classes;
    int label_bytes = 1;  // number of label bytes before each picture
    int label_byte = 0;   // the number of the label byte that is used
    int num_classes = 10;
    std::string python_folder;
    std::string archive;
  };
  Cifar(const std::filesystem::path& root, const Files& files, Compose transform);

  Result<Picture> read_picture(std::int64_t index, std::vector<std::uint8_t>& scratch) const override;
  std::int64_t label(std::int64_t index) const override { return labels_[static_cast<std::size_t>(index)]; }
  std::string name(std::int64_t index) const override;

 private:
  void read(const std::filesystem::path& path, const Files& files);

  std::string folder_;
  std::vector<std::uint8_t> pixels_;  // the three planes of each picture
  std::vector<std::int64_t> labels_;
  std::vector<std::string> classes_;
};

class Cifar10 : public Cifar {
 public:
  // Reads all pictures of the split into memory: 50,000 or 10,000. The files (data_batch_1.bin to data_batch_5.bin,
  // test_batch.bin, batches.meta.txt) are in `root` or in root/cifar-10-batches-bin. Throws DataError: kNotFound lists
  // the missing files, kCorrupt says which file is damaged and how.
  explicit Cifar10(const std::filesystem::path& root, bool train = true, Compose transform = Compose({ToTensor{}}));
};

// The 100 fine labels, or the 20 coarse ones, which torchvision does not offer.
enum class CifarLabels { kFine, kCoarse };

class Cifar100 : public Cifar {
 public:
  // As Cifar10, with train.bin or test.bin, fine_label_names.txt and coarse_label_names.txt in `root` or in
  // root/cifar-100-binary.
  explicit Cifar100(const std::filesystem::path& root, bool train = true, Compose transform = Compose({ToTensor{}}),
                    CifarLabels labels = CifarLabels::kFine);
};

}  // namespace lockstep::data
