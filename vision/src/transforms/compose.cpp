#include "lockstep/transforms/compose.h"

#include <algorithm>
#include <cmath>

#include "image/decoders.h"
#include "transforms/kind.h"

namespace lockstep::data {

struct Compose::Parts {
  std::vector<Transform> transforms;
  Precision precision = Precision::kFast;
  Finish finish;
};

namespace {

ToFloat to_float_of(const Normalize* normalize, Precision precision) {
  ToFloat how;
  how.exact = precision == Precision::kExact;
  for (std::size_t c = 0; c < 3; ++c) {
    if (normalize != nullptr) {
      how.mean[c] = number_of_channel(normalize->mean, c);
      how.deviation[c] = number_of_channel(normalize->std, c);
    }
    how.scale[c] = static_cast<float>(1.0 / (255.0 * how.deviation[c]));
    how.offset[c] = -how.mean[c] / how.deviation[c];
  }
  return how;
}

struct ThreadState {
  Image decoded;
  Image resized;
};

ThreadState& thread_state() {
  return memory_of_thread<ThreadState>();
}

// By how much a JPEG may be reduced when it is decoded. The result is at least twice as large as the target: the
// decoder reduces with another filter, and resampling what is twice as large hides the difference.
int reduction(const Plan& plan, ImageSize wanted, std::size_t next) {
  if (plan.precision == Precision::kExact || next >= plan.steps.size()) return 1;
  const auto* resize = std::get_if<ResizeStep>(&plan.steps[next]);
  if (resize == nullptr || resize->filter == Interpolation::kNearest) return 1;
  for (const int n : {8, 4, 2}) {
    if (wanted.width >= 2 * n * resize->size.width && wanted.height >= 2 * n * resize->size.height) return n;
  }
  return 1;
}

// A decoded region of fewer pixels covers more than the box: it begins and ends at whole pixels.
const Image& resized_part(const Step& step, const Box& box, const DecodedRegion& region) {
  const auto& resize = std::get<ResizeStep>(step);
  const auto place = [&](int at, int origin) { return static_cast<double>(at - origin) / region.reduce; };
  const Extent columns{place(box.left, region.covered.left), place(box.right(), region.covered.left)};
  const Extent rows{place(box.top, region.covered.top), place(box.bottom(), region.covered.top)};
  Image& image = thread_state().resized;
  ImageSink sink(image, resize.size);
  resample(region.view, columns, rows, resize.size, resize.filter, sink);
  return image;
}

}  // namespace

Compose::Compose(std::vector<Transform> transforms, Precision precision) {
  auto parts = std::make_shared<Parts>();
  parts->transforms = std::move(transforms);
  parts->precision = precision;
  const SampleState state = check_transforms(parts->transforms);
  parts->finish = {state.floats, to_float_of(state.normalize, precision)};
  parts_ = std::move(parts);
}

const std::vector<Transform>& Compose::transforms() const {
  return parts_->transforms;
}

Precision Compose::precision() const {
  return parts_->precision;
}

SamplePlan Compose::draw(ImageSize picture, const SampleKey& key) const {
  const auto drawn = std::make_shared<Plan>();
  Plan& plan = *drawn;
  plan.picture = plan.size = picture;
  plan.precision = parts_->precision;
  plan.steps.reserve(parts_->transforms.size() + 1);  // most transforms add one step at most
  plan.finish = &parts_->finish;
  draw_all(parts_->transforms, key, /*stream=*/0, plan);
  return SamplePlan(drawn);
}

SampleShape Compose::shape_of(const SamplePlan& plan) {
  return plan->shape();
}

void Compose::apply(const SamplePlan& drawn, std::span<const std::uint8_t> encoded, const DecodeOptions& options,
                    void* out) const {
  const Plan& plan = *drawn;
  DecodeRequest request;
  request.options = options;
  Image& decoded = thread_state().decoded;
  const auto* crop = plan.steps.empty() ? nullptr : std::get_if<CropStep>(&plan.steps.front());
  if (options.apply_orientation && exif_orientation(encoded) != 1) {
    return apply(drawn, value_or_throw(decode_image(encoded, options)), out);
  }
  if (crop != nullptr) request.region = crop->box;
  const std::size_t done = crop != nullptr ? 1 : 0;
  const Box box = crop != nullptr ? crop->box : Box{0, 0, plan.picture.width, plan.picture.height};
  request.reduce = reduction(plan, {box.width, box.height}, done);
  const DecodedRegion region = value_or_throw(decode_region(encoded, request, decoded));
  if (region.picture != plan.picture) {
    throw DataError(ErrorCode::kCorrupt, "its pixels have another size than its header says");
  }
  if (region.reduce > 1) return run_plan(plan, resized_part(plan.steps[done], box, region), done + 1, out);
  run_plan(plan, region.view, done, out);
}

void Compose::apply(const SamplePlan& drawn, const Image& picture, void* out) const {
  const Plan& plan = *drawn;
  if (picture.size() != plan.picture) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("Compose: the plan is for a picture of {} x {}, found one of {} x {}",
                                plan.picture.width, plan.picture.height, picture.width(), picture.height()));
  }
  run_plan(plan, picture, 0, out);
}

// --- Drawing, for all transforms: the steps of a plan and the random numbers of each transform

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
