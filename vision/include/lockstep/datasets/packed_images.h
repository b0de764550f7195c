// The pictures of a pack (pack.h) as a dataset: the same samples, classes and transforms as an ImageFolder of the
// folder that was packed. (Pictures that the pack made smaller, or left out, differ.)
//
//   PackedImages train("train.pack", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{}, ToTensor{}}));
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/errors.h"
#include "lockstep/datasets/image_dataset.h"
#include "lockstep/picture_tools/pack.h"

namespace lockstep::data {

class PackedImages : public ImageDataset {
 public:
  // Maps the file and reads only its index. Throws the errors of PackReader::open as DataError.
  explicit PackedImages(const std::filesystem::path& file, Compose transform = Compose({ToTensor{}}),
                        const ImageOptions& options = {})
      : ImageDataset(std::move(transform), options),
        pack_(value_or_throw(PackReader::open(file))),
        file_(file.native()) {}

  std::int64_t size() const override { return pack_.size(); }
  const std::vector<std::string>& classes() const { return pack_.classes(); }
  const PackReader& pack() const { return pack_; }

 protected:
  Result<Picture> read_picture(std::int64_t index, std::vector<std::uint8_t>& /*scratch*/) const override {
    return Picture(pack_.bytes(index));
  }
  std::int64_t label(std::int64_t index) const override { return pack_.label(index); }
  std::string name(std::int64_t index) const override { return file_ + ": " + std::string(pack_.name(index)); }

 private:
  PackReader pack_;
  std::string file_;
};

}  // namespace lockstep::data
