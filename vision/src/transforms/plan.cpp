// Drawing, for all transforms: the steps of a plan and the random numbers of each transform.
#include <algorithm>
#include <cmath>

#include "transforms/kind.h"

namespace lockstep::data {
namespace {

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

void add_step(Plan& plan, Step step) {
  const ImageSize before = plan.size;
  const auto* crop = std::get_if<CropStep>(&step);
  if (crop != nullptr && crop->box == Box{0, 0, before.width, before.height}) return;
  plan.size = size_after(step, before);
  if (const auto* grey = std::get_if<GreyStep>(&step)) plan.channels = grey->channels;
  check_growth(before, plan.size);
  plan.steps.push_back(std::move(step));
}

void draw_transform(const Transform& transform, const SampleKey& key, std::int64_t stream, Plan& plan) {
  const Kind& kind = kind_of(transform);
  // One channel of the picture itself: check_transforms knows only that of Grayscale.
  if (plan.channels == 1) check_grey_fill(transform, {"Compose", kind.name});
  Drawing drawing{key, stream, plan};
  kind.draw(transform, drawing);
}

void draw_all(const std::vector<Transform>& transforms, const SampleKey& key, std::int64_t stream, Plan& plan) {
  for (const Transform& transform : transforms) {
    draw_transform(transform, key, stream, plan);
    stream += streams_of(transform);
  }
}

int rounded(double value) {
  constexpr double kMost = 1e9;
  return static_cast<int>(std::nearbyint(std::clamp(value, -kMost, kMost)));
}

}  // namespace lockstep::data
