#include "lockstep/datasets/packed_images.h"

#include "lockstep/data/errors.h"

namespace lockstep::data {

PackedImages::PackedImages(const std::filesystem::path& file, Compose transform, const ImageOptions& options)
    : ImageDataset(std::move(transform), options),
      pack_(value_or_throw(PackReader::open(file))),
      file_(file.native()) {}

Result<Picture> PackedImages::read_picture(std::int64_t index, std::vector<std::uint8_t>& /*scratch*/) const {
  return Picture(pack_.bytes(index));
}

std::string PackedImages::name(std::int64_t index) const {
  return file_ + ": " + std::string(pack_.name(index));
}

}  // namespace lockstep::data
