#include "transforms/elastic.h"

#include <algorithm>

namespace lockstep::data {

void uniform_noise(const NoiseKey& key, std::uint32_t plane, std::size_t count, std::vector<float>& noise) {
  constexpr std::size_t kBlock = 4;
  noise.resize(count);
  for (std::size_t i = 0; i < count; i += kBlock) {
    const auto block = static_cast<std::uint64_t>(i / kBlock);
    const std::array<std::uint32_t, 4> numbers =
        philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), plane, 0}, key);
    for (std::size_t j = 0; j < std::min(kBlock, count - i); ++j) {
      noise[i + j] = static_cast<float>(numbers[j] >> 8) * 0x1p-23F - 1.0F;
    }
  }
}

void displacement_of_noise(std::vector<float>& noise, ImageSize size, const PerAxis& sigma, bool along_x,
                           double alpha) {
  const double own = along_x ? sigma.x : sigma.y;
  if (own > 0.0) {
    const int side = static_cast<int>(8.0 * own + 1.0) | 1;  // odd
    gaussian_blur(noise.data(), size, {side, side, sigma.x, sigma.y});
  }
  const auto scale = static_cast<float>(alpha);
  const auto length = static_cast<float>(along_x ? size.width : size.height);
  for (float& value : noise) value = value * scale / length;
}

void run_elastic(const ElasticStep& step, const View& picture, RowSink& sink) {
  thread_local Displacement displacement;
  const ImageSize size{picture.width, picture.height};
  const std::size_t pixels = static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height);
  uniform_noise(step.noise, 0, pixels, displacement.x);
  uniform_noise(step.noise, 1, pixels, displacement.y);
  displacement_of_noise(displacement.x, size, step.sigma, /*along_x=*/true, step.alpha.x);
  displacement_of_noise(displacement.y, size, step.sigma, /*along_x=*/false, step.alpha.y);
  transform_elastic(picture, displacement, step.filter, step.fill, sink);
}

}  // namespace lockstep::data
