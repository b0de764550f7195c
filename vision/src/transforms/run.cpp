// Executes a plan: step by step between two pictures that belong to the thread; the last step writes directly to the
// sample's memory. A mirror takes no pass of its own: the step before it writes its rows mirrored.
#include <algorithm>
#include <span>

#include "transforms/step.h"

namespace lockstep::data {
namespace {

// Two pictures by turns: a step reads one and writes the other.
struct Turns {
  Image pictures[2];
};

struct Scratch {
  Turns sample;
  std::vector<AffineStage> stages;
};

Scratch& scratch_of_thread() {
  return memory_of_thread<Scratch>();
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

// Executes steps. `Last` gets the work that writes the rows of the last one, with the size and the mirrors that follow.
template <class Last>
class Runner {
 public:
  Runner(const Plan& plan, std::span<const Step> steps, Turns& turns, const Last& last)
      : plan_(plan), steps_(steps), turns_(turns), last_(last) {}

  void run(View in) {
    std::size_t at = 0;
    do {
      at = run_from(at, in);
    } while (at < steps_.size());
  }

 private:
  static constexpr int kMostFixed = 16384;  // pixels: larger positions do not fit 16.16 fixed point

  // Executes one step, or several fused ones, with the mirrors after them. Returns the next step; `in` becomes the
  // result.
  std::size_t run_from(std::size_t at, View& in) {
    const std::size_t fused = fusible_until(at, in);
    std::size_t next = std::max(fused, std::min(at + 1, steps_.size()));
    const bool only_mirrors = at < steps_.size() && std::holds_alternative<MirrorStep>(steps_[at]) && fused == at;
    if (only_mirrors) next = at;
    Mirror mirror;
    for (; next < steps_.size() && std::holds_alternative<MirrorStep>(steps_[next]); ++next) {
      const Mirror& more = std::get<MirrorStep>(steps_[next]).mirror;
      mirror.horizontal ^= more.horizontal;
      mirror.vertical ^= more.vertical;
    }
    const ImageSize size = size_of(at, next, in);
    const auto work = [&](RowSink& sink) {
      if (fused > at) {
        run_fused(at, fused, in, sink);
      } else if (only_mirrors || at == steps_.size()) {
        copy_rows(in, sink);
      } else {
        std::visit([&](const auto& one) { one.run(in, sink); }, steps_[at]);
      }
    };
    if (next == steps_.size()) {
      last_(work, size, mirror);
    } else {
      Image& picture = turns_.pictures[turn_];
      turn_ = 1 - turn_;
      ImageSink sink(picture, size, mirror);
      work(sink);
      in = picture;
    }
    return next;
  }

  ImageSize size_of(std::size_t begin, std::size_t end, const View& in) const {
    ImageSize size{in.width, in.height};
    for (std::size_t i = begin; i < end; ++i) size = size_after(steps_[i], size);
    return size;
  }

  // The end of the warps and mirrors from `at` on that can be fused to one resampling; `at` when there are none.
  std::size_t fusible_until(std::size_t at, const View& in) const {
    if (plan_.precision == Precision::kExact || std::max(in.width, in.height) > kMostFixed) return at;
    if (std::min(in.width, in.height) < 2) return at;
    std::size_t end = at;
    bool any_warp = false;
    Color fill{};
    for (; end < steps_.size(); ++end) {
      if (std::holds_alternative<MirrorStep>(steps_[end])) continue;
      const auto* warp = std::get_if<WarpStep>(&steps_[end]);
      if (warp == nullptr || (warp->filter != Interpolation::kNearest && warp->filter != Interpolation::kBilinear))
        break;
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
    Interpolation filter = Interpolation::kNearest;
    Color fill{};
    ImageSize frame{in.width, in.height};
    for (std::size_t i = begin; i < end; ++i) {
      if (const auto* warp = std::get_if<WarpStep>(&steps_[i])) {
        stages.push_back({warp->matrix, frame});
        if (warp->filter == Interpolation::kBilinear) filter = Interpolation::kBilinear;
        fill = warp->fill;
        frame = warp->size;
      } else {
        stages.push_back({mirror_matrix(std::get<MirrorStep>(steps_[i]).mirror, frame), frame});
      }
    }
    std::reverse(stages.begin(), stages.end());
    transform_fused(in, frame, stages, filter, fill, sink);
  }

  const Plan& plan_;
  std::span<const Step> steps_;
  Turns& turns_;
  const Last& last_;
  int turn_ = 0;
};

// Writes the rows of `work` as numbers of the sample's type.
template <class Work>
void write_sample(const Plan& plan, const Work& work, ImageSize size, Mirror mirror, void* out) {
  if (plan.finish->to_float) {
    FloatSink sink(static_cast<float*>(out), size, plan.channels, plan.finish->how, mirror);
    work(sink);
  } else {
    ByteSink sink(static_cast<std::uint8_t*>(out), size, plan.channels, mirror);
    work(sink);
  }
}

}  // namespace

std::size_t& LambdaScope::depth() {
  thread_local std::size_t depth = 0;
  return depth;
}

void run_plan(const Plan& plan, const View& picture, std::size_t done, void* out) {
  Scratch& scratch = scratch_of_thread();
  const std::span<const Step> steps = std::span(plan.steps).subspan(done);
  const auto write = [&](const auto& work, ImageSize size, Mirror mirror) {
    write_sample(plan, work, size, mirror, out);
  };
  Runner(plan, steps, scratch.sample, write).run(picture);
  for (const FloatStep& step : plan.float_steps) {
    std::visit([&](const auto& one) { one.run(plan, static_cast<float*>(out)); }, step);
  }
}

}  // namespace lockstep::data
