#include "lockstep/datasets/transform_tensor.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

void check(const torch::Tensor& picture) {
  const bool defined = picture.defined();
  if (defined && picture.scalar_type() == torch::kByte && picture.device().is_cpu() && picture.dim() == 3 &&
      (picture.size(0) == 1 || picture.size(0) == 3) && picture.numel() > 0) {
    return;
  }
  std::string found = "an undefined tensor";
  if (defined) {
    std::string sizes;
    for (const std::int64_t size : picture.sizes()) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
    found = fmt::format("{} [{}] on {}", c10::toString(picture.scalar_type()), sizes, picture.device().str());
  }
  throw DataError(
      ErrorCode::kInvalidArgument,
      fmt::format("transform_tensor: expected a uint8 picture [1 or 3, height, width] on the CPU, found {}", found));
}

Image to_image(const torch::Tensor& picture) {
  const torch::Tensor planes = picture.contiguous();
  Image image(static_cast<int>(planes.size(2)), static_cast<int>(planes.size(1)));
  const std::int64_t pixels = planes.size(1) * planes.size(2);
  const std::int64_t next = planes.size(0) == 3 ? pixels : 0;  // from a channel to the next
  const std::uint8_t* from = planes.const_data_ptr<std::uint8_t>();
  std::uint8_t* to = image.row(0);
  for (std::int64_t i = 0; i < pixels; ++i, to += Image::kBytesPerPixel) {
    to[0] = from[i];
    to[1] = from[i + next];
    to[2] = from[i + 2 * next];
    to[3] = 255;
  }
  return image;
}

}  // namespace

torch::Tensor transform_tensor(const Compose& transforms, const torch::Tensor& picture, const SampleKey& key) {
  check(picture);
  const Image image = to_image(picture);
  const SamplePlan plan = transforms.draw(image.size(), key, static_cast<int>(picture.size(0)));
  const SampleShape shape = Compose::shape_of(plan);
  torch::Tensor sample =
      torch::empty({shape.channels, shape.height, shape.width}, shape.is_float ? torch::kFloat : torch::kByte);
  transforms.apply(plan, image, sample.data_ptr());
  return sample;
}

}  // namespace lockstep::data
