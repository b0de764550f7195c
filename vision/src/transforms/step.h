// Steps: transforms with their drawn parameters.
#pragma once

#include <deque>
#include <functional>
#include <variant>
#include <vector>

#include "image/affine.h"
#include "image/color.h"
#include "image/resample.h"
#include "lockstep/transforms/compose.h"

namespace lockstep::data {

// Of noise for any number of pixels: CounterRandom repeats its numbers after 2^18.
using NoiseKey = std::array<std::uint32_t, 2>;

// A step reads a picture and writes its result to `sink`. A step that changes the size of a picture has size_after().
struct CropStep {
  Box box;
  ImageSize size_after(ImageSize /*before*/) const { return {box.width, box.height}; }
  void run(const View& in, RowSink& sink) const { copy_rows(in.part(box), sink); }
};
struct ResizeStep {
  ImageSize size;
  Interpolation filter;
  ImageSize size_after(ImageSize /*before*/) const { return size; }
  void run(const View& in, RowSink& sink) const { resample(in, size, filter, sink); }
};
struct MirrorStep {
  Mirror mirror;
  void run(const View& in, RowSink& sink) const { copy_rows(in, sink); }  // into a sink that mirrors
};
struct WarpStep {
  AffineMatrix matrix;
  ImageSize size;
  Interpolation filter;
  Color fill;
  ImageSize size_after(ImageSize /*before*/) const { return size; }
  void run(const View& in, RowSink& sink) const { transform_affine(in, size, matrix, filter, fill, sink); }
};
struct PadStep {
  PadAmounts amounts;
  Color fill;
  PaddingMode mode;
  ImageSize size_after(ImageSize before) const {
    return {before.width + amounts.left + amounts.right, before.height + amounts.top + amounts.bottom};
  }
  void run(const View& in, RowSink& sink) const { pad(in, amounts, fill, mode, sink); }
};
struct BrightnessStep {
  float factor;
  void run(const View& in, RowSink& sink) const { apply_lookup(in, brightness_lookup(factor), sink); }
};
struct ContrastStep {
  float factor;
  void run(const View& in, RowSink& sink) const { apply_lookup(in, contrast_lookup(in, factor), sink); }
};
struct SaturationStep {
  float factor;
  void run(const View& in, RowSink& sink) const { adjust_saturation(in, factor, sink); }
};
struct HueStep {
  double factor;
  void run(const View& in, RowSink& sink) const { adjust_hue(in, factor, sink); }
};
struct SharpnessStep {
  float factor;
  void run(const View& in, RowSink& sink) const { adjust_sharpness(in, factor, sink); }
};
struct PosterizeStep {
  int bits;
  void run(const View& in, RowSink& sink) const { apply_lookup(in, posterize_lookup(bits), sink); }
};
struct SolarizeStep {
  double threshold;
  void run(const View& in, RowSink& sink) const { apply_lookup(in, solarize_lookup(threshold), sink); }
};
struct InvertStep {
  static void run(const View& in, RowSink& sink) { apply_lookup(in, invert_lookup(), sink); }
};
struct AutoContrastStep {
  static void run(const View& in, RowSink& sink) { apply_lookups(in, autocontrast_lookups(in), sink); }
};
struct EqualizeStep {
  static void run(const View& in, RowSink& sink) { apply_lookups(in, equalize_lookups(in), sink); }
};
struct GreyStep {
  int channels;
  void run(const View& in, RowSink& sink) const { to_grey(in, sink); }
};
struct BlurStep {
  GaussianKernel kernel;
  void run(const View& in, RowSink& sink) const { gaussian_blur(in, kernel, sink); }
};
struct LambdaStep {
  const Lambda* lambda;  // of the Compose
  CounterRandom random;
  void run(const View& in, RowSink& sink) const;
};
using Step = std::variant<CropStep, ResizeStep, MirrorStep, WarpStep, PadStep, BrightnessStep, ContrastStep,
                          SaturationStep, HueStep, SharpnessStep, PosterizeStep, SolarizeStep, InvertStep,
                          AutoContrastStep, EqualizeStep, GreyStep, BlurStep, LambdaStep>;

// What the step makes of a picture's size.
inline ImageSize size_after(const Step& step, ImageSize size) {
  const auto after = [size](const auto& one) {
    if constexpr (requires { one.size_after(size); }) return one.size_after(size);
    return size;
  };
  return std::visit(after, step);
}

// Overwrites a box of the finished floats.
struct EraseStep {
  Box box;
  std::array<float, 3> value;
  std::optional<NoiseKey> noise;
  bool before_normalize;
  void run(const Plan& plan, float* out) const;
};

// Blurs the finished floats.
struct FloatBlurStep {
  GaussianKernel kernel;
  void run(const Plan& plan, float* out) const;
};

// Normalizes the finished floats: (value - mean) / deviation.
struct NormalizeStep {
  std::array<float, 3> mean;
  std::array<float, 3> deviation;
  void run(const Plan& plan, float* out) const;
};

using FloatStep = std::variant<EraseStep, FloatBlurStep, NormalizeStep>;

// Of a list with one number for all channels, or one for each.
inline float number_of_channel(const std::vector<double>& numbers, std::size_t channel) {
  return static_cast<float>(numbers[numbers.size() == 1 ? 0 : channel]);
}

// How the last step converts pixels: the same for all samples of a Compose.
struct Finish {
  bool to_float = false;
  ToFloat how;
};

struct Plan {
  ImageSize picture;  // size of the input
  ImageSize size;     // size after the steps so far
  int channels = 3;   // of the sample; pictures between the steps always hold R, G and B
  Precision precision = Precision::kFast;
  std::vector<Step> steps;
  std::vector<FloatStep> float_steps;  // after the conversion to float
  bool floats = false;                 // ToTensor or ConvertImageDtype was among the transforms so far
  bool normalized = false;             // so was Normalize
  const Finish* finish = nullptr;

  SampleShape shape() const { return {channels, size.height, size.width, finish->to_float}; }
};

// Draws the parameters of all transforms, and appends their steps. Each transform has random numbers of its own: the
// stream is its place in the list, where those of lists within the list count too.
void draw_all(const std::vector<Transform>& transforms, const SampleKey& key, std::int64_t stream, Plan& plan);
void draw_transform(const Transform& transform, const SampleKey& key, std::int64_t stream, Plan& plan);
// How many streams a transform takes: 1, and those of its list.
std::int64_t streams_of(const Transform& transform);

// The steps for given parameters of torchvision's functions; a header has them for the parity tests.
Box random_resized_crop_box(ImageSize picture, Interval01 scale, Interval01 ratio, CounterRandom& random);
WarpStep rotation(ImageSize picture, double degrees, Interpolation filter, bool expand, std::optional<Point> center,
                  Color fill);
struct AffineParameters {
  double angle = 0.0;
  Point translate = {0, 0};
  double scale = 1.0;
  Point shear = {0, 0};
  std::optional<Point> center = {};
};
WarpStep affine(ImageSize picture, const AffineParameters& parameters, Interpolation filter, Color fill);
ImageSize resized_size(ImageSize picture, const Resize& resize);
void add_step(Plan& plan, Step step);
// Rounds half to even, like Python, and limits the result to 1e9, which is far larger than any picture.
int rounded(double value);

// Exists while a Lambda runs in the thread. The Lambda may run another Compose, which then has memory of its own.
class LambdaScope {
 public:
  LambdaScope() { ++depth(); }
  ~LambdaScope() { --depth(); }
  LambdaScope(const LambdaScope&) = delete;
  LambdaScope& operator=(const LambdaScope&) = delete;
  // How many there are in this thread.
  static std::size_t& depth();
};

// The T of this thread, outside of Lambdas or in the present one.
template <typename T>
T& memory_of_thread() {
  thread_local std::deque<T> memory;
  while (memory.size() <= LambdaScope::depth()) memory.emplace_back();
  return memory[LambdaScope::depth()];
}

// Executes the plan on decoded pixels, without the first `done` steps: `picture` is already what they make.
void run_plan(const Plan& plan, const View& picture, std::size_t done, void* out);

}  // namespace lockstep::data
