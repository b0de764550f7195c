// Steps on the finished floats of a sample.
#include <cmath>
#include <numbers>

#include "image/blur.h"
#include "transforms/step.h"

namespace lockstep::data {
namespace {

// Standard normal numbers, in pairs by Box and Muller.
class NormalNoise {
 public:
  explicit NormalNoise(const NoiseKey& key) : key_(key) {}

  float next() {
    has_second_ = !has_second_;
    if (!has_second_) return second_;
    const auto [a, b, c, d] =
        philox({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32), 0, 0}, key_);
    ++block_;
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(a, b)));
    const double angle = 2.0 * std::numbers::pi * uniform(c, d);
    second_ = static_cast<float>(radius * std::sin(angle));
    return static_cast<float>(radius * std::cos(angle));
  }

 private:
  static double uniform(std::uint64_t high, std::uint32_t low) {
    return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
  }

  NoiseKey key_;
  std::uint64_t block_ = 0;
  bool has_second_ = false;
  float second_ = 0.0F;
};

class FloatRunner {
 public:
  FloatRunner(const SamplePlan& plan, float* out) : plan_(plan), out_(out) {}

  void operator()(const EraseStep& step) const {
    const ToFloat& how = plan_.finish->how;
    NormalNoise noise(step.noise.value_or(NoiseKey{}));
    for (int c = 0; c < plan_.channels; ++c) {
      const auto channel = static_cast<std::size_t>(c);
      for (int y = step.box.top; y < step.box.bottom(); ++y) {
        float* row = plane(c) + std::ptrdiff_t{y} * plan_.size.width + step.box.left;
        for (int x = 0; x < step.box.width; ++x) {
          float value = step.noise ? noise.next() : step.value[channel];
          if (step.before_normalize) value = (value - how.mean[c]) / how.deviation[c];
          row[x] = value;
        }
      }
    }
  }

  // Before or after Normalize: the weights of a blur add up to 1.
  void operator()(const FloatBlurStep& step) const {
    for (int c = 0; c < plan_.channels; ++c) gaussian_blur(plane(c), plan_.size, step.kernel);
  }

 private:
  float* plane(int channel) const { return out_ + std::ptrdiff_t{channel} * plan_.size.width * plan_.size.height; }

  const SamplePlan& plan_;
  float* out_;
};

}  // namespace

void run_float_steps(const SamplePlan& plan, float* out) {
  for (const FloatStep& step : plan.float_steps) std::visit(FloatRunner(plan, out), step);
}

}  // namespace lockstep::data
