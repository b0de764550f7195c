#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "transforms/check.h"
#include "transforms/step.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

EdgeMode edge_mode(PaddingMode mode) {
  switch (mode) {
    case PaddingMode::kConstant: return EdgeMode::kConstant;
    case PaddingMode::kEdge: return EdgeMode::kEdge;
    case PaddingMode::kReflect: return EdgeMode::kReflect;
    case PaddingMode::kSymmetric: return EdgeMode::kSymmetric;
  }
  return EdgeMode::kConstant;
}

// Negative amounts crop.
void add_padding(SamplePlan& plan, const Padding& padding, const Fill& fill, PaddingMode mode) {
  const Box kept{std::max(-padding.left, 0), std::max(-padding.top, 0),
                 plan.size.width + std::min(padding.left, 0) + std::min(padding.right, 0),
                 plan.size.height + std::min(padding.top, 0) + std::min(padding.bottom, 0)};
  if (kept.empty()) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("Pad: negative padding leaves nothing of a picture of {} x {}", plan.size.width, plan.size.height));
  }
  if (kept.width != plan.size.width || kept.height != plan.size.height) add_step(plan, CropStep{kept});
  const PadAmounts amounts{std::max(padding.left, 0), std::max(padding.top, 0), std::max(padding.right, 0),
                           std::max(padding.bottom, 0)};
  if (amounts != PadAmounts{}) add_step(plan, PadStep{amounts, fill.color, edge_mode(mode)});
}

// One overload for each transform.
class Drawer {
 public:
  Drawer(CounterRandom& random, SamplePlan& plan) : random_(random), plan_(plan) {}

  void operator()(const Resize& resize) {
    const ImageSize size = resized_size(plan_.size, resize);
    if (size != plan_.size) add_step(plan_, ResizeStep{size, filter_of(resize.interpolation)});
  }

  void operator()(const CenterCrop& crop) {
    const int wide = std::max(crop.size.width - plan_.size.width, 0);
    const int high = std::max(crop.size.height - plan_.size.height, 0);
    if (wide > 0 || high > 0) {
      add_step(plan_, PadStep{{wide / 2, high / 2, (wide + 1) / 2, (high + 1) / 2}, {}, EdgeMode::kConstant});
    }
    add_step(plan_,
             CropStep{{rounded((plan_.size.width - crop.size.width) / 2.0),
                       rounded((plan_.size.height - crop.size.height) / 2.0), crop.size.width, crop.size.height}});
  }

  void operator()(const RandomResizedCrop& crop) {
    add_step(plan_, CropStep{random_resized_crop_box(plan_.size, crop.scale, crop.ratio, random_)});
    const ImageSize size{crop.size.width, crop.size.height};
    if (size != plan_.size) add_step(plan_, ResizeStep{size, filter_of(crop.interpolation)});
  }

  void operator()(const RandomCrop& crop) {
    if (crop.padding) add_padding(plan_, *crop.padding, crop.fill, crop.padding_mode);
    const int wide = std::max(crop.size.width - plan_.size.width, 0);
    const int high = std::max(crop.size.height - plan_.size.height, 0);
    if (crop.pad_if_needed && wide > 0) add_padding(plan_, {wide, 0}, crop.fill, crop.padding_mode);
    if (crop.pad_if_needed && high > 0) add_padding(plan_, {0, high}, crop.fill, crop.padding_mode);
    const int free_x = plan_.size.width - crop.size.width;
    const int free_y = plan_.size.height - crop.size.height;
    if (free_x < 0 || free_y < 0) {
      throw DataError(
          ErrorCode::kInvalidArgument,
          fmt::format("RandomCrop: expected a picture of at least {} x {}, found {} x {}; resize first or set "
                      "pad_if_needed",
                      crop.size.width, crop.size.height, plan_.size.width, plan_.size.height));
    }
    const auto top = static_cast<int>(random_.below(free_y + 1));
    const auto left = static_cast<int>(random_.below(free_x + 1));
    add_step(plan_, CropStep{{left, top, crop.size.width, crop.size.height}});
  }

  void operator()(const RandomResize& resize) {
    const int size = resize.min_size + static_cast<int>(random_.below(resize.max_size - resize.min_size));
    operator()(Resize{size, resize.interpolation});
  }

  void operator()(const ScaleJitter& jitter) {
    const double fit = std::min(static_cast<double>(jitter.target_size.width) / plan_.size.height,
                                static_cast<double>(jitter.target_size.height) / plan_.size.width);
    const double factor = fit * random_.uniform(jitter.scale_range.low, jitter.scale_range.high);
    const auto scaled = [&](int side) { return static_cast<int>(std::min(side * factor, kMostSide)); };
    const ImageSize size{scaled(plan_.size.width), scaled(plan_.size.height)};
    if (size != plan_.size) add_step(plan_, ResizeStep{size, filter_of(jitter.interpolation)});
  }

  void operator()(const FiveCrop& crop) { set_crops(five_crops(plan_.size, crop.size)); }
  void operator()(const TenCrop& crop) { set_crops(ten_crops(plan_.size, crop)); }
  void operator()(const Pad& pad) { add_padding(plan_, pad.padding, pad.fill, pad.padding_mode); }
  void operator()(const RandomHorizontalFlip& flip) {
    if (random_.chance(flip.p)) add_step(plan_, MirrorStep{{.horizontal = true}});
  }
  void operator()(const RandomVerticalFlip& flip) {
    if (random_.chance(flip.p)) add_step(plan_, MirrorStep{{.vertical = true}});
  }
  void operator()(const RandomRotation& turn) {
    const double angle = random_.uniform(turn.degrees.low, turn.degrees.high);
    if (std::fmod(angle, 360.0) == 0.0) return;
    add_step(plan_,
             rotation(plan_.size, angle, filter_of(turn.interpolation), turn.expand, turn.center, turn.fill.color));
  }

  void operator()(const RandomAffine& transform) {
    AffineParameters parameters;
    parameters.center = transform.center;
    parameters.angle = random_.uniform(transform.degrees.low, transform.degrees.high);
    if (transform.translate) {
      const double x = transform.translate->x * plan_.size.width;
      const double y = transform.translate->y * plan_.size.height;
      parameters.translate.x = rounded(random_.uniform(-x, x));
      parameters.translate.y = rounded(random_.uniform(-y, y));
    }
    if (transform.scale) parameters.scale = random_.uniform(transform.scale->low, transform.scale->high);
    if (transform.shear) parameters.shear.x = random_.uniform(transform.shear->low, transform.shear->high);
    if (transform.shear_y) parameters.shear.y = random_.uniform(transform.shear_y->low, transform.shear_y->high);
    add_step(plan_, affine(plan_.size, parameters, filter_of(transform.interpolation), transform.fill.color));
  }

  void operator()(const RandomPerspective& perspective) {
    if (!random_.chance(perspective.p)) return;
    const Corners corners = random_corners(plan_.size, perspective.distortion_scale, random_);
    const std::optional<Projection> matrix = projection(corners_of(plan_.size), corners);
    if (matrix) add_step(plan_, PerspectiveStep{*matrix, filter_of(perspective.interpolation), perspective.fill.color});
  }

  void operator()(const ElasticTransform& elastic) {
    const NoiseKey key{random_.bits(), random_.bits()};
    add_step(plan_,
             ElasticStep{key, elastic.alpha, elastic.sigma, filter_of(elastic.interpolation), elastic.fill.color});
  }

  void operator()(const ColorJitter& jitter) {
    std::array<int, 4> order{0, 1, 2, 3};
    for (std::size_t i = 3; i > 0; --i) {
      std::swap(order[i], order[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(i) + 1))]);
    }
    const auto brightness = drawn(jitter.brightness, 1.0);
    const auto contrast = drawn(jitter.contrast, 1.0);
    const auto saturation = drawn(jitter.saturation, 1.0);
    const auto hue = drawn(jitter.hue, 0.0);
    for (const int which : order) {
      if (which == 0 && brightness) add_step(plan_, BrightnessStep{static_cast<float>(*brightness)});
      if (which == 1 && contrast) add_step(plan_, ContrastStep{static_cast<float>(*contrast)});
      if (which == 2 && saturation && plan_.channels == 3)
        add_step(plan_, SaturationStep{static_cast<float>(*saturation)});
      if (which == 3 && hue && plan_.channels == 3) add_step(plan_, HueStep{*hue});
    }
  }

  void operator()(const Grayscale& grey) { add_step(plan_, GreyStep{grey.num_output_channels}); }
  void operator()(const RandomGrayscale& grey) {
    if (random_.chance(grey.p) && plan_.channels == 3) add_step(plan_, GreyStep{3});
  }
  void operator()(const GaussianBlur& blur) {
    const double sigma = random_.uniform(blur.sigma.low, blur.sigma.high);
    const GaussianKernel kernel{blur.kernel_size.x, blur.kernel_size.y, sigma};
    if (plan_.floats) {
      plan_.float_steps.emplace_back(FloatBlurStep{kernel});
    } else {
      add_step(plan_, BlurStep{kernel});
    }
  }
  void operator()(const RandomInvert& t) { add_with(t.p, InvertStep{}); }
  void operator()(const RandomPosterize& t) { add_with(t.p, PosterizeStep{t.bits}); }
  void operator()(const RandomSolarize& t) { add_with(t.p, SolarizeStep{t.threshold}); }
  void operator()(const RandomAdjustSharpness& t) {
    add_with(t.p, SharpnessStep{static_cast<float>(t.sharpness_factor)});
  }
  void operator()(const RandomAutocontrast& t) { add_with(t.p, AutoContrastStep{}); }
  void operator()(const RandomEqualize& t) { add_with(t.p, EqualizeStep{}); }
  void operator()(const AutoAugment& augment) { draw_auto_augment(augment, random_, plan_); }
  void operator()(const RandAugment& augment) { draw_rand_augment(augment, random_, plan_); }
  void operator()(const TrivialAugmentWide& augment) { draw_trivial_augment(augment, random_, plan_); }
  void operator()(const AugMix& augment) { draw_aug_mix(augment, random_, plan_); }
  void operator()(const Lambda& lambda) { add_step(plan_, LambdaStep{&lambda, random_}); }
  // The conversion is the same for all samples: Compose has prepared it.
  void operator()(const ToTensor& /*unused*/) { plan_.floats = true; }
  void operator()(const ConvertImageDtype& /*unused*/) { plan_.floats = true; }
  void operator()(const PILToTensor& /*unused*/) {}
  void operator()(const Normalize& /*unused*/) {
    // Values that were erased before it are normalized with the pixels.
    for (FloatStep& step : plan_.float_steps) {
      if (auto* erase = std::get_if<EraseStep>(&step)) erase->before_normalize = true;
    }
  }
  // draw_all takes lists apart.
  void operator()(const RandomApply& /*unused*/) {}
  void operator()(const RandomChoice& /*unused*/) {}
  void operator()(const RandomOrder& /*unused*/) {}

  void operator()(const RandomErasing& erasing) {
    if (!random_.chance(erasing.p)) return;
    const double area = static_cast<double>(plan_.size.width) * plan_.size.height;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = area * random_.uniform(erasing.scale.low, erasing.scale.high);
      const double aspect = std::exp(random_.uniform(std::log(erasing.ratio.low), std::log(erasing.ratio.high)));
      const int height = rounded(std::sqrt(target * aspect));
      const int width = rounded(std::sqrt(target / aspect));
      if (height >= plan_.size.height || width >= plan_.size.width) continue;
      EraseStep step{};
      step.box.top = static_cast<int>(random_.below(plan_.size.height - height + 1));
      step.box.left = static_cast<int>(random_.below(plan_.size.width - width + 1));
      step.box.width = width;
      step.box.height = height;
      for (std::size_t c = 0; c < 3; ++c) {
        step.value[c] = static_cast<float>(erasing.value[erasing.value.size() == 1 ? 0 : c]);
      }
      if (erasing.random) step.noise = NoiseKey{random_.bits(), random_.bits()};
      plan_.float_steps.emplace_back(step);
      return;
    }
  }

 private:
  static constexpr double kMostSide = 1e9;

  void add_with(double p, Step step) {
    if (random_.chance(p)) add_step(plan_, std::move(step));
  }
  void set_crops(std::vector<CropPart> crops) {
    plan_.crops = std::move(crops);
    plan_.size = {plan_.crops.front().box.width, plan_.crops.front().box.height};
  }
  // nullopt: no change.
  std::optional<double> drawn(const Jitter& jitter, double center) {
    double low = jitter.low;
    double high = jitter.high;
    if (jitter.amount) {
      low = center == 0.0 ? -*jitter.amount : std::max(center - *jitter.amount, 0.0);
      high = center + *jitter.amount;
    }
    if (low == high && low == center) return std::nullopt;
    return random_.uniform(low, high);
  }

  CounterRandom& random_;
  SamplePlan& plan_;
};

// A picture of one row may become huge: scaled to 224 rows, it has 50,000 times as many pixels; turned by 45 degrees,
// millions.
void check_growth(ImageSize before, ImageSize after) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
  const std::int64_t pixels = std::int64_t{after.width} * after.height;
  const std::int64_t most = std::max(kMostPixels, std::int64_t{before.width} * before.height);
  if (after.width >= 1 && after.height >= 1 && pixels <= most) return;
  throw DataError(
      ErrorCode::kInvalidArgument,
      fmt::format("a transform would turn a picture of {} x {} into one of {} x {}; expected 1 to {} pixels. "
                  "Crop first, or set max_size of Resize",
                  before.width, before.height, after.width, after.height, most));
}

}  // namespace

void draw_steps(const Transform& transform, CounterRandom& random, SamplePlan& plan) {
  if (plan.channels == 1) check_grey_fill(transform, "Compose");  // of the dataset; Compose checks those of Grayscale
  std::visit(Drawer(random, plan), transform);
}

void add_step(SamplePlan& plan, Step step) {
  const ImageSize before = plan.size;
  const auto* crop = std::get_if<CropStep>(&step);
  if (crop != nullptr && crop->box == Box{0, 0, before.width, before.height}) return;
  plan.size = size_after(step, before);
  if (const auto* grey = std::get_if<GreyStep>(&step)) plan.channels = grey->channels;
  check_growth(before, plan.size);
  plan.steps.push_back(std::move(step));
}

}  // namespace lockstep::data
