#include "lockstep/data/packed_images.h"

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

PackReader open_or_throw(const std::filesystem::path& file) {
  Result<PackReader> pack = PackReader::open(file);
  if (!pack.ok()) throw DataError(pack.status().code(), pack.status().message());
  return std::move(pack).value();
}

}  // namespace

PackedImages::PackedImages(const std::filesystem::path& file, Compose transform, const ImageOptions& options)
    : ImageDataset(std::move(transform), options), pack_(open_or_throw(file)), file_(file.native()) {}

Result<std::span<const std::uint8_t>> PackedImages::read_picture(std::int64_t index,
                                                                 std::vector<std::uint8_t>& /*scratch*/) const {
  return pack_.bytes(index);
}

std::string PackedImages::name(std::int64_t index) const {
  return file_ + ": " + std::string(pack_.name(index));
}

}  // namespace lockstep::data
