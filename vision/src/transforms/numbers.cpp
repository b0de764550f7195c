// Transforms that make numbers of pixels, and RandomErasing, which overwrites these numbers.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "transforms/kind.h"

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

// torch.dtype, of those that samples may have.
enum class NumberType { kFloat, kByte };

void read(const TextValue& value, NumberType& into) {
  text::read_word<NumberType>(
      value, into, {{"float32", NumberType::kFloat}, {"float", NumberType::kFloat}, {"uint8", NumberType::kByte}});
}

// The arguments of ConvertImageDtype and ToDtype.
struct Dtype {
  NumberType type = NumberType::kFloat;
  bool scale = true;
};

// Samples are bytes, as after PILToTensor, until they are floats.
Transform conversion(Dtype to) {
  if (to.type == NumberType::kByte) return PILToTensor{};
  if (!to.scale) text::refuse("expected scale=True: floats are from 0 to 1");
  return ConvertImageDtype{};
}

Parameter<Dtype> dtype(bool required) {
  return {{"dtype", required}, [](const TextValue& value, Dtype& into) { read(value, into.type); }};
}

// Whether the result takes the place of the input does not concern who gets samples.
template <class T>
Parameter<T> inplace() {
  return {{"inplace", false}, [](const TextValue& value, T&) {
            bool unused = false;
            text::read(value, unused);
          }};
}

void is_mean(const std::vector<double>& mean, const Require& require) {
  for (const double value : mean) require(std::isfinite(static_cast<float>(value)), "a finite mean", value);
}

// Samples are float32: a std that has not all its digits there cannot divide.
void is_std(const std::vector<double>& deviation, const Require& require) {
  for (const double value : deviation)
    require(std::isnormal(static_cast<float>(value)), "a std other than 0, within the range of float32", value);
}

void check_normalize(const Normalize& t, const Require& require) {
  for (const std::size_t count : {t.mean.size(), t.std.size()})
    require(count == 1 || count == 3, "1 or 3 numbers in mean and std", count);
}

void place_normalize(const Normalize& t, const Place& place) {
  place.changes_samples();
  place.require(place.state.floats, "ToTensor before it", "none");
  for (const std::size_t count : {t.mean.size(), t.std.size()}) place.has_numbers(count);
  if (place.state.normalize == nullptr) place.state.normalize = &t;
}

// The first is part of the conversion of the pixels, which Compose has prepared. Values that were erased before it are
// normalized with the pixels.
void draw_normalize(const Normalize& t, Drawing& d) {
  if (d.plan.normalized) {
    NormalizeStep step;
    for (std::size_t c = 0; c < 3; ++c) {
      step.mean[c] = number_of_channel(t.mean, c);
      step.deviation[c] = number_of_channel(t.std, c);
    }
    d.plan.float_steps.emplace_back(step);
    return;
  }
  d.plan.normalized = true;
  for (FloatStep& step : d.plan.float_steps) {
    if (auto* erase = std::get_if<EraseStep>(&step)) erase->before_normalize = true;
  }
}

// torchvision's value: numbers or 'random'.
void read_erasing_value(const TextValue& value, RandomErasing& t) {
  t.random = value.kind == TextValue::Kind::kWord;
  if (!t.random) return text::read(value, t.value);
  if (value.word != "random") text::refuse(fmt::format("expected numbers or 'random', found '{}'", value.word));
}

void check_erasing_value(const RandomErasing& t, const Require& require) {
  require(t.value.size() == 1 || t.value.size() == 3, "1 or 3 numbers in value", t.value.size());
  for (const double value : t.value) require(std::isfinite(value), "a finite value", value);
}

void draw_erasing(const RandomErasing& t, Drawing& d) {
  CounterRandom& random = d.random;
  if (!random.chance(t.p)) return;
  const ImageSize size = d.plan.size;
  const double area = static_cast<double>(size.width) * size.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(t.scale.low, t.scale.high);
    const double aspect = std::exp(random.uniform(std::log(t.ratio.low), std::log(t.ratio.high)));
    const int height = rounded(std::sqrt(target * aspect));
    const int width = rounded(std::sqrt(target / aspect));
    if (height >= size.height || width >= size.width) continue;
    EraseStep step{};
    step.box.top = static_cast<int>(random.below(size.height - height + 1));
    step.box.left = static_cast<int>(random.below(size.width - width + 1));
    step.box.width = width;
    step.box.height = height;
    for (std::size_t c = 0; c < 3; ++c) step.value[c] = number_of_channel(t.value, c);
    if (t.random) step.noise = NoiseKey{random.bits(), random.bits()};
    d.plan.float_steps.emplace_back(step);
    return;
  }
}

float* plane_of(const Plan& plan, int channel, float* out) {
  return out + std::ptrdiff_t{channel} * plan.size.width * plan.size.height;
}

}  // namespace

void EraseStep::run(const Plan& plan, float* out) const {
  const ToFloat& how = plan.finish->how;
  NormalNoise numbers(noise.value_or(NoiseKey{}));
  for (int c = 0; c < plan.channels; ++c) {
    const auto channel = static_cast<std::size_t>(c);
    for (int y = box.top; y < box.bottom(); ++y) {
      float* row = plane_of(plan, c, out) + std::ptrdiff_t{y} * plan.size.width + box.left;
      for (int x = 0; x < box.width; ++x) {
        float number = noise ? numbers.next() : value[channel];
        if (before_normalize) number = (number - how.mean[c]) / how.deviation[c];
        row[x] = number;
      }
    }
  }
}

void NormalizeStep::run(const Plan& plan, float* out) const {
  const std::size_t pixels = static_cast<std::size_t>(plan.size.width) * static_cast<std::size_t>(plan.size.height);
  const auto channels = static_cast<std::size_t>(plan.channels);
  for (std::size_t c = 0; c < channels; ++c) {
    for (float& value : std::span(out + c * pixels, pixels)) value = (value - mean[c]) / deviation[c];
  }
}

// Before or after Normalize: the weights of a blur add up to 1.
void FloatBlurStep::run(const Plan& plan, float* out) const {
  for (int c = 0; c < plan.channels; ++c) gaussian_blur(plane_of(plan, c, out), plan.size, kernel);
}

std::vector<Kind> number_kinds() {
  return {
      About<ToTensor>{
          .name = "ToTensor",
          .draw = [](const auto&, Drawing& d) { d.plan.floats = true; },
          .stands =
              [](const auto&, const Place& place) {
                place.changes_samples();
                place.require(!place.state.floats, "ToTensor once", "it again");
                place.state.floats = true;
              },
      },
      About<ConvertImageDtype>{
          .name = "ConvertImageDtype",
          .draw = [](const auto&, Drawing& d) { d.plan.floats = true; },
          .stands =
              [](const auto&, const Place& place) {
                place.changes_samples();
                place.state.floats = true;
              },
          .has_text = false,
      },
      AboutText<Dtype>{.name = "ConvertImageDtype", .parameters = {dtype(/*required=*/false)}, .make = conversion},
      AboutText<Dtype>{
          .name = "ToDtype",
          .defaults = {NumberType::kFloat, false},
          .parameters = {dtype(/*required=*/true), optional("scale", &Dtype::scale)},
          .make = conversion,
      },
      About<PILToTensor>{
          .name = "PILToTensor",
          .draw = [](const auto&, Drawing&) {},
          .stands =
              [](const auto&, const Place& place) {
                place.changes_samples();
                place.require(!place.state.floats, "transforms of pixels before ToTensor", "this one after it");
              },
      },
      AboutText<PILToTensor>{.name = "ToImage", .make = [](PILToTensor t) -> Transform { return t; }},
      About<Normalize>{
          .name = "Normalize",
          .parameters = {required("mean", &Normalize::mean, is_mean), required("std", &Normalize::std, is_std),
                         inplace<Normalize>()},
          .draw = draw_normalize,
          .stands = place_normalize,
          .check = check_normalize,
      },
      About<RandomErasing>{
          .name = "RandomErasing",
          .parameters = {probability<RandomErasing>(),
                         optional("scale", &RandomErasing::scale, range(0, 1)),
                         optional("ratio", &RandomErasing::ratio, range(kAboveZero, kInfinity)),
                         {{"value", false}, read_erasing_value, check_erasing_value},
                         inplace<RandomErasing>()},
          .draw = draw_erasing,
          .stands =
              [](const auto& t, const Place& place) {
                place.changes_floats();
                place.has_numbers(t.random ? 1 : t.value.size());
              },
      },
  };
}

}  // namespace lockstep::data
