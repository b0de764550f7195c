// Steps: transforms with their drawn parameters.
#pragma once

#include <deque>
#include <functional>
#include <variant>
#include <vector>

#include "image/affine.h"
#include "image/blur.h"
#include "image/color.h"
#include "image/resample.h"
#include "lockstep/transforms/compose.h"

namespace lockstep::data {

// Of noise for any number of pixels: CounterRandom repeats its numbers after 2^18.
using NoiseKey = std::array<std::uint32_t, 2>;

struct CropStep {
  Box box;
};
struct ResizeStep {
  ImageSize size;
  Filter filter;
};
struct MirrorStep {
  Mirror mirror;
};
struct WarpStep {
  AffineMatrix matrix;
  ImageSize size;
  Filter filter;
  Color fill;
};
struct PerspectiveStep {
  Projection matrix;
  Filter filter;
  Color fill;
};
struct ElasticStep {
  NoiseKey noise;
  PerAxis alpha;
  PerAxis sigma;
  Filter filter;
  Color fill;
};
struct PadStep {
  PadAmounts amounts;
  Color fill;
  EdgeMode mode;
};
struct BrightnessStep {
  float factor;
};
struct ContrastStep {
  float factor;
};
struct SaturationStep {
  float factor;
};
struct HueStep {
  double factor;
};
struct SharpnessStep {
  float factor;
};
struct PosterizeStep {
  int bits;
};
struct SolarizeStep {
  double threshold;
};
struct InvertStep {};
struct AutoContrastStep {};
struct EqualizeStep {};
struct GreyStep {
  int channels;
};
struct BlurStep {
  GaussianKernel kernel;
};
struct LambdaStep {
  const Lambda* lambda;  // of the Compose
  CounterRandom random;
};
// The weighted sum of the picture and of what chains of steps make of it. No chain changes its size.
struct MixStep {
  struct Chain {
    float weight;
    std::size_t begin, end;  // in SamplePlan::chain_steps
  };
  float weight;  // of the picture itself
  std::vector<Chain> chains;
};

using Step =
    std::variant<CropStep, ResizeStep, MirrorStep, WarpStep, PerspectiveStep, ElasticStep, PadStep, BrightnessStep,
                 ContrastStep, SaturationStep, HueStep, SharpnessStep, PosterizeStep, SolarizeStep, InvertStep,
                 AutoContrastStep, EqualizeStep, GreyStep, BlurStep, LambdaStep, MixStep>;

// What the step makes of a picture's size.
ImageSize size_after(const Step& step, ImageSize size);

// A picture of FiveCrop or TenCrop.
struct CropPart {
  Box box;
  Mirror mirror;
};

// Overwrites a box of the finished floats.
struct EraseStep {
  Box box;
  std::array<float, 3> value;
  std::optional<NoiseKey> noise;
  bool before_normalize;
};

// Blurs the finished floats.
struct FloatBlurStep {
  GaussianKernel kernel;
};

using FloatStep = std::variant<EraseStep, FloatBlurStep>;

// How the last step converts pixels: the same for all samples of a Compose.
struct Finish {
  bool to_float = false;
  ToFloat how;
};

class SamplePlan {
 public:
  ImageSize picture;  // size of the input
  ImageSize size;     // size after the steps so far, and after crops that of each crop
  int channels = 3;   // of the sample; pictures between the steps always hold R, G and B
  Precision precision = Precision::kFast;
  std::vector<Step> steps;
  std::vector<Step> chain_steps;       // of the MixSteps
  std::vector<CropPart> crops;         // after the steps; empty: the whole picture
  std::vector<FloatStep> float_steps;  // after the conversion to float
  bool floats = false;                 // ToTensor or ConvertImageDtype was among the transforms so far
  const Finish* finish = nullptr;
};

// Draws the parameters of all transforms, and appends their steps. Each transform has numbers of its own: the stream is
// its place in the list, where those of lists within the list count too.
void draw_all(const std::vector<Transform>& transforms, const SampleKey& key, SamplePlan& plan);
// How many streams a transform takes: 1, and those of its list.
std::int64_t streams_of(const Transform& transform);
// Draws the parameters of a transform that is not a list, appends its steps and updates the size.
void draw_steps(const Transform& transform, CounterRandom& random, SamplePlan& plan);

// The steps for given parameters of torchvision's functions; for draw_steps and the parity tests.
Box random_resized_crop_box(ImageSize picture, Interval01 scale, Interval01 ratio, CounterRandom& random);
WarpStep rotation(ImageSize picture, double degrees, Filter filter, bool expand, std::optional<Point> center,
                  Color fill);
struct AffineParameters {
  double angle = 0.0;
  Point translate = {0, 0};
  double scale = 1.0;
  Point shear = {0, 0};
  std::optional<Point> center = {};
};
WarpStep affine(ImageSize picture, const AffineParameters& parameters, Filter filter, Color fill);
ImageSize resized_size(ImageSize picture, const Resize& resize);
// The corners of a picture: upper left, upper right, lower right, lower left.
using Corners = std::array<Point, 4>;
Corners corners_of(ImageSize picture);
Corners random_corners(ImageSize picture, double distortion_scale, CounterRandom& random);
// Maps `to` back to `from`. nullopt: no projection does, because several corners are on one line.
std::optional<Projection> projection(const Corners& from, const Corners& to);
// Throws DataError when the picture is too small.
std::vector<CropPart> five_crops(ImageSize picture, const OutputSize& size);
std::vector<CropPart> ten_crops(ImageSize picture, const TenCrop& options);
void draw_auto_augment(const AutoAugment& options, CounterRandom& random, SamplePlan& plan);
void draw_rand_augment(const RandAugment& options, CounterRandom& random, SamplePlan& plan);
void draw_trivial_augment(const TrivialAugmentWide& options, CounterRandom& random, SamplePlan& plan);
void draw_aug_mix(const AugMix& options, CounterRandom& random, SamplePlan& plan);
void add_step(SamplePlan& plan, Step step);
Filter filter_of(Interpolation interpolation);
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

// Executes the float steps on the finished sample.
void run_float_steps(const SamplePlan& plan, float* out);

// Executes the plan on decoded pixels, without the first `done` steps: `picture` is already what they make.
void run_plan(const SamplePlan& plan, const View& picture, std::size_t done, void* out);

}  // namespace lockstep::data
