// Executes a plan: step by step between two pictures that belong to the thread; the last step writes directly to the
// sample's memory. A mirror takes no pass of its own: the step before it writes its rows mirrored.
#include <fmt/format.h>

#include <algorithm>

#include "data/transforms/step.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

struct Scratch {
  Image pictures[2];
  Image owned;  // the picture that a Lambda changes
  std::vector<AffineStage> stages;
};

Scratch& scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

Lookups three(const Lookup& lookup) {
  return {lookup, lookup, lookup};
}

// Executes one step: reads `in` and writes rows to `sink`.
class StepRunner {
 public:
  StepRunner(const View& in, RowSink& sink) : in_(in), sink_(sink) {}

  void operator()(const CropStep& step) { copy_rows(in_.part(step.box), sink_); }
  void operator()(const ResizeStep& step) { resample(in_, step.size, step.filter, sink_); }
  void operator()(const MirrorStep& /*unused*/) { copy_rows(in_, sink_); }
  void operator()(const WarpStep& step) {
    transform_affine(in_, step.size, step.matrix, step.filter, step.fill, sink_);
  }
  void operator()(const PadStep& step) { pad(in_, step.amounts, step.fill, step.mode, sink_); }
  void operator()(const BrightnessStep& step) { apply_lookups(in_, three(brightness_lookup(step.factor)), sink_); }
  void operator()(const ContrastStep& step) { apply_lookups(in_, three(contrast_lookup(in_, step.factor)), sink_); }
  void operator()(const SaturationStep& step) { adjust_saturation(in_, step.factor, sink_); }
  void operator()(const HueStep& step) { adjust_hue(in_, step.factor, sink_); }
  void operator()(const SharpnessStep& step) { adjust_sharpness(in_, step.factor, sink_); }
  void operator()(const PosterizeStep& step) { apply_lookups(in_, three(posterize_lookup(step.bits)), sink_); }
  void operator()(const SolarizeStep& step) { apply_lookups(in_, three(solarize_lookup(step.threshold)), sink_); }
  void operator()(const InvertStep& /*unused*/) { apply_lookups(in_, three(invert_lookup()), sink_); }
  void operator()(const AutoContrastStep& /*unused*/) { apply_lookups(in_, autocontrast_lookups(in_), sink_); }
  void operator()(const EqualizeStep& /*unused*/) { apply_lookups(in_, equalize_lookups(in_), sink_); }
  void operator()(const GreyStep& /*unused*/) { to_grey(in_, sink_); }
  void operator()(const BlurStep& step) { gaussian_blur(in_, step.kernel, sink_); }
  void operator()(const LambdaStep& step) {
    Image& image = scratch_of_thread().owned;
    {
      ImageSink copy(image, {in_.width, in_.height});
      copy_rows(in_, copy);
    }
    CounterRandom random = step.random;
    step.lambda->apply(image, random);
    if (image.width() != in_.width || image.height() != in_.height) {
      throw DataError(ErrorCode::kInvalidArgument,
                      fmt::format("Lambda: expected that it keeps the size of its picture, {} x {}, found {} x {}",
                                  in_.width, in_.height, image.width(), image.height()));
    }
    copy_rows(image, sink_);
  }

 private:
  const View& in_;
  RowSink& sink_;
};

ImageSize size_after(const Step& step, ImageSize size) {
  if (const auto* crop = std::get_if<CropStep>(&step)) return {crop->box.width, crop->box.height};
  if (const auto* resize = std::get_if<ResizeStep>(&step)) return resize->size;
  if (const auto* warp = std::get_if<WarpStep>(&step)) return warp->size;
  if (const auto* padding = std::get_if<PadStep>(&step)) {
    const PadAmounts& a = padding->amounts;
    return {size.width + a.left + a.right, size.height + a.top + a.bottom};
  }
  return size;
}

AffineMatrix mirror_matrix(const Mirror& mirror, ImageSize size) {
  AffineMatrix matrix{1, 0, 0, 0, 1, 0};
  if (mirror.horizontal) {
    matrix[0] = -1;
    matrix[2] = size.width;
  }
  if (mirror.vertical) {
    matrix[4] = -1;
    matrix[5] = size.height;
  }
  return matrix;
}

class Runner {
 public:
  Runner(const SamplePlan& plan, void* out) : plan_(plan), out_(out) {}

  void run(View in, std::size_t first) {
    std::size_t at = first;
    do {
      at = run_from(at, in);
    } while (at < plan_.steps.size());
  }

 private:
  static constexpr int kMostFixed = 16384;  // pixels: larger positions do not fit 16.16 fixed point

  // Executes one step, or several fused ones, with the mirrors after them. Returns the next step; `in` becomes the
  // result.
  std::size_t run_from(std::size_t at, View& in) {
    const std::size_t fused = fusible_until(at, in);
    std::size_t next = std::max(fused, std::min(at + 1, plan_.steps.size()));
    const bool only_mirrors =
        at < plan_.steps.size() && std::holds_alternative<MirrorStep>(plan_.steps[at]) && fused == at;
    if (only_mirrors) next = at;
    Mirror mirror;
    for (; next < plan_.steps.size() && std::holds_alternative<MirrorStep>(plan_.steps[next]); ++next) {
      const Mirror& more = std::get<MirrorStep>(plan_.steps[next]).mirror;
      mirror.horizontal ^= more.horizontal;
      mirror.vertical ^= more.vertical;
    }
    const ImageSize size = size_of(at, next, in);
    const auto work = [&](RowSink& sink) {
      if (fused > at) {
        run_fused(at, fused, in, sink);
      } else if (only_mirrors || at == plan_.steps.size()) {
        copy_rows(in, sink);
      } else {
        std::visit(StepRunner(in, sink), plan_.steps[at]);
      }
    };
    if (next == plan_.steps.size()) {
      finish(work, size, mirror);
    } else {
      Image& picture = scratch_of_thread().pictures[turn_];
      turn_ = 1 - turn_;
      ImageSink sink(picture, size, mirror);
      work(sink);
      in = picture;
    }
    return next;
  }

  template <class Work>
  void finish(const Work& work, ImageSize size, Mirror mirror) {
    if (plan_.finish->to_float) {
      FloatSink sink(static_cast<float*>(out_), size, plan_.channels, plan_.finish->how, mirror);
      work(sink);
    } else {
      ByteSink sink(static_cast<std::uint8_t*>(out_), size, plan_.channels, mirror);
      work(sink);
    }
  }

  ImageSize size_of(std::size_t begin, std::size_t end, const View& in) const {
    ImageSize size{in.width, in.height};
    for (std::size_t i = begin; i < end; ++i) size = size_after(plan_.steps[i], size);
    return size;
  }

  // The end of the warps and mirrors from `at` on that can be fused to one resampling; `at` when there are none.
  std::size_t fusible_until(std::size_t at, const View& in) const {
    if (plan_.precision == Precision::kExact || std::max(in.width, in.height) > kMostFixed) return at;
    if (std::min(in.width, in.height) < 2) return at;
    std::size_t end = at;
    bool any_warp = false;
    Color fill{};
    for (; end < plan_.steps.size(); ++end) {
      if (std::holds_alternative<MirrorStep>(plan_.steps[end])) continue;
      const auto* warp = std::get_if<WarpStep>(&plan_.steps[end]);
      if (warp == nullptr || (warp->filter != Filter::kNearest && warp->filter != Filter::kBilinear)) break;
      if (any_warp && warp->fill != fill) break;
      if (std::max(warp->size.width, warp->size.height) > kMostFixed) break;
      fill = warp->fill;
      any_warp = true;
    }
    return any_warp ? end : at;
  }

  void run_fused(std::size_t begin, std::size_t end, const View& in, RowSink& sink) const {
    std::vector<AffineStage>& stages = scratch_of_thread().stages;
    stages.clear();
    Filter filter = Filter::kNearest;
    Color fill{};
    ImageSize frame{in.width, in.height};
    for (std::size_t i = begin; i < end; ++i) {
      if (const auto* warp = std::get_if<WarpStep>(&plan_.steps[i])) {
        stages.push_back({warp->matrix, frame});
        if (warp->filter == Filter::kBilinear) filter = Filter::kBilinear;
        fill = warp->fill;
        frame = warp->size;
      } else {
        stages.push_back({mirror_matrix(std::get<MirrorStep>(plan_.steps[i]).mirror, frame), frame});
      }
    }
    std::reverse(stages.begin(), stages.end());
    transform_fused(in, frame, stages, filter, fill, sink);
  }

  const SamplePlan& plan_;
  void* out_;
  int turn_ = 0;
};

void erase(const SamplePlan& plan, const EraseStep& step, float* out) {
  const ToFloat& how = plan.finish->how;
  std::optional<CounterRandom> noise = step.noise;
  for (int c = 0; c < plan.channels; ++c) {
    const auto channel = static_cast<std::size_t>(c);
    for (int y = step.box.top; y < step.box.bottom(); ++y) {
      float* row = out + (std::ptrdiff_t{c} * plan.size.height + y) * plan.size.width + step.box.left;
      for (int x = 0; x < step.box.width; ++x) {
        float value = noise ? static_cast<float>(noise->normal()) : step.value[channel];
        if (step.before_normalize) value = (value - how.mean[c]) / how.deviation[c];
        row[x] = value;
      }
    }
  }
}

}  // namespace

void run_plan(const SamplePlan& plan, const View& picture, bool skip_crop, void* out) {
  Runner(plan, out).run(picture, skip_crop ? 1 : 0);
  for (const EraseStep& step : plan.erasures) erase(plan, step, static_cast<float*>(out));
}

}  // namespace lockstep::data
