// Transforms of colours, and GaussianBlur.
#include <algorithm>
#include <array>

#include "transforms/kind.h"

namespace lockstep::data {
namespace {

// `low` and `high` limit a range; `high` also limits an amount.
auto jitter(double low, double high) {
  return [=](const Jitter& value, const Require& require) {
    if (!value.amount) return is_range({value.low, value.high}, low, high, require);
    require(*value.amount >= 0 && *value.amount <= std::min(high, kFinite),
            fmt::format("a {} of at least 0, at most {}", require.parameter, high), *value.amount);
  };
}

// nullopt: no change.
std::optional<double> drawn(const Jitter& jitter, double center, CounterRandom& random) {
  double low = jitter.low;
  double high = jitter.high;
  if (jitter.amount) {
    low = center == 0.0 ? -*jitter.amount : std::max(center - *jitter.amount, 0.0);
    high = center + *jitter.amount;
  }
  if (low == high && low == center) return std::nullopt;
  return random.uniform(low, high);
}

void draw_jitter(const ColorJitter& t, Drawing& d) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = 3; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(d.random.below(static_cast<std::int64_t>(i) + 1))]);
  }
  const auto brightness = drawn(t.brightness, 1.0, d.random);
  const auto contrast = drawn(t.contrast, 1.0, d.random);
  const auto saturation = drawn(t.saturation, 1.0, d.random);
  const auto hue = drawn(t.hue, 0.0, d.random);
  const bool has_colors = d.plan.channels == 3;
  for (const int which : order) {
    if (which == 0 && brightness) d.add(BrightnessStep{static_cast<float>(*brightness)});
    if (which == 1 && contrast) d.add(ContrastStep{static_cast<float>(*contrast)});
    if (which == 2 && saturation && has_colors) d.add(SaturationStep{static_cast<float>(*saturation)});
    if (which == 3 && hue && has_colors) d.add(HueStep{*hue});
  }
}

void is_kernel(const KernelSize& size, const Require& require) {
  for (const int side : {size.x, size.y})
    require(side >= 1 && side <= kLargestSide && side % 2 == 1,
            fmt::format("an odd kernel size up to {}", kLargestSide), side);
}

// One number, or two.
void read_sigma(const TextValue& value, GaussianBlur& t) {
  if (value.kind != TextValue::Kind::kNumber) return text::read(value, t.sigma);
  t.sigma = {value.number, value.number};
}

void check_sigma(const GaussianBlur& t, const Require& require) {
  range(kAboveZero, kInfinity)(t.sigma, Require{require.place, require.name, "sigma"});
}

void draw_blur(const GaussianBlur& t, Drawing& d) {
  const GaussianKernel kernel{t.kernel_size.x, t.kernel_size.y, d.random.uniform(t.sigma.low, t.sigma.high)};
  if (d.plan.floats) {
    d.plan.float_steps.emplace_back(FloatBlurStep{kernel});
  } else {
    d.add(BlurStep{kernel});
  }
}

}  // namespace

std::vector<Kind> color_kinds() {
  return {
      About<ColorJitter>{
          .name = "ColorJitter",
          .parameters = {optional("brightness", &ColorJitter::brightness, jitter(0, kInfinity)),
                         optional("contrast", &ColorJitter::contrast, jitter(0, kInfinity)),
                         optional("saturation", &ColorJitter::saturation, jitter(0, kInfinity)),
                         optional("hue", &ColorJitter::hue, jitter(-0.5, 0.5))},
          .draw = draw_jitter,
      },
      About<Grayscale>{
          .name = "Grayscale",
          .parameters = {optional("num_output_channels", &Grayscale::num_output_channels,
                                  [](int channels, const Require& require) {
                                    require(channels == 1 || channels == 3, "1 or 3 output channels", channels);
                                  })},
          .draw = [](const auto& t, Drawing& d) { d.add(GreyStep{t.num_output_channels}); },
          .stands =
              [](const auto& t, const Place& place) {
                place.changes_pixels();
                place.require(!place.listed || t.num_output_channels == 3, "3 output channels in a list", "1");
                place.state.channels = static_cast<std::size_t>(t.num_output_channels);
              },
      },
      About<RandomGrayscale>{
          .name = "RandomGrayscale",
          .parameters = {probability<RandomGrayscale>()},
          .draw =
              [](const auto& t, Drawing& d) {
                if (d.random.chance(t.p) && d.plan.channels == 3) d.add(GreyStep{3});
              },
      },
      About<GaussianBlur>{
          .name = "GaussianBlur",
          .defaults = {1},
          .parameters = {required("kernel_size", &GaussianBlur::kernel_size, is_kernel),
                         {{"sigma", false}, read_sigma, check_sigma}},
          .draw = draw_blur,
          .stands = [](const auto&,
                       const Place& place) { place.state.floats ? place.changes_floats() : place.changes_pixels(); },
      },
      About<RandomInvert>{
          .name = "RandomInvert",
          .parameters = {probability<RandomInvert>()},
          .draw = [](const auto& t, Drawing& d) { d.add_with(t.p, InvertStep{}); },
      },
      About<RandomPosterize>{
          .name = "RandomPosterize",
          .defaults = {8},
          .parameters = {required("bits", &RandomPosterize::bits, between(1, 8, "1 to 8 bits")),
                         probability<RandomPosterize>()},
          .draw = [](const auto& t, Drawing& d) { d.add_with(t.p, PosterizeStep{t.bits}); },
      },
      About<RandomSolarize>{
          .name = "RandomSolarize",
          .parameters = {required("threshold", &RandomSolarize::threshold,
                                  between(-kInfinity, kInfinity, "a number as threshold")),
                         probability<RandomSolarize>()},
          .draw = [](const auto& t, Drawing& d) { d.add_with(t.p, SolarizeStep{t.threshold}); },
      },
      About<RandomAdjustSharpness>{
          .name = "RandomAdjustSharpness",
          .parameters = {required("sharpness_factor", &RandomAdjustSharpness::sharpness_factor,
                                  between(0, kFinite, "a sharpness_factor of at least 0")),
                         probability<RandomAdjustSharpness>()},
          .draw = [](const auto& t,
                     Drawing& d) { d.add_with(t.p, SharpnessStep{static_cast<float>(t.sharpness_factor)}); },
      },
      About<RandomAutocontrast>{
          .name = "RandomAutocontrast",
          .parameters = {probability<RandomAutocontrast>()},
          .draw = [](const auto& t, Drawing& d) { d.add_with(t.p, AutoContrastStep{}); },
      },
      About<RandomEqualize>{
          .name = "RandomEqualize",
          .parameters = {probability<RandomEqualize>()},
          .draw = [](const auto& t, Drawing& d) { d.add_with(t.p, EqualizeStep{}); },
      },
  };
}

}  // namespace lockstep::data
