// ElasticTransform: noise, smoothed and scaled, displaces the pixels.
#include <algorithm>
#include <cmath>

#include "image/affine.h"
#include "transforms/kind.h"

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

void ElasticStep::run(const View& in, RowSink& sink) const {
  thread_local Displacement displacement;
  const ImageSize size{in.width, in.height};
  const std::size_t pixels = static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height);
  uniform_noise(noise, 0, pixels, displacement.x);
  uniform_noise(noise, 1, pixels, displacement.y);
  displacement_of_noise(displacement.x, size, sigma, /*along_x=*/true, alpha.x);
  displacement_of_noise(displacement.y, size, sigma, /*along_x=*/false, alpha.y);
  transform_elastic(in, displacement, filter, fill, sink);
}

namespace {

void is_finite(const PerAxis& alpha, const Require& require) {
  for (const double value : {alpha.x, alpha.y}) require(std::isfinite(value), "a finite alpha", value);
}

void is_sigma(const PerAxis& sigma, const Require& require) {
  const bool smooths = sigma.x > 0 && sigma.y > 0;
  require((smooths || (sigma.x == 0 && sigma.y == 0)) && 8 * std::max(sigma.x, sigma.y) + 1 < kLargestSide,
          fmt::format("a sigma above 0 and below {} along both axes, or 0 along both", kLargestSide / 8),
          fmt::format("({}, {})", sigma.x, sigma.y));
}

void is_grid_filter(Interpolation interpolation, const Require& require) {
  require(interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear,
          "the interpolation kNearest or kBilinear", static_cast<int>(interpolation));
}

}  // namespace

std::vector<Kind> elastic_kinds() {
  return {About<ElasticTransform>{
      .name = "ElasticTransform",
      .parameters = {optional("alpha", &ElasticTransform::alpha, is_finite),
                     optional("sigma", &ElasticTransform::sigma, is_sigma),
                     optional("interpolation", &ElasticTransform::interpolation, is_grid_filter),
                     fill<ElasticTransform>()},
      .draw =
          [](const auto& t, Drawing& d) {
            const NoiseKey key{d.random.bits(), d.random.bits()};
            d.add(ElasticStep{key, t.alpha, t.sigma, t.interpolation, t.fill.color});
          },
  }};
}

}  // namespace lockstep::data
