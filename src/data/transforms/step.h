// Steps: transforms with their drawn parameters.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "data/image/affine.h"
#include "data/image/color.h"
#include "data/image/resample.h"
#include "lockstep/data/transforms/compose.h"

namespace lockstep::data {

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

using Step = std::variant<CropStep, ResizeStep, MirrorStep, WarpStep, PadStep, BrightnessStep, ContrastStep,
                          SaturationStep, HueStep, SharpnessStep, PosterizeStep, SolarizeStep, InvertStep,
                          AutoContrastStep, EqualizeStep, GreyStep, BlurStep, LambdaStep>;

// Overwrites a box of the finished floats.
struct EraseStep {
  Box box;
  std::array<float, 3> value;
  std::optional<CounterRandom> noise;
  bool before_normalize;
};

// How the last step converts pixels: the same for all samples of a Compose.
struct Finish {
  bool to_float = false;
  ToFloat how;
};

class SamplePlan {
 public:
  ImageSize picture;  // size of the input
  ImageSize size;     // size after the steps so far
  int channels = 3;   // of the sample; pictures between the steps always hold R, G and B
  Precision precision = Precision::kFast;
  std::vector<Step> steps;
  std::vector<EraseStep> erasures;
  const Finish* finish = nullptr;
};

// Draws the parameters of `transform`, appends its steps and updates the size.
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
void draw_auto_augment(const AutoAugment& options, CounterRandom& random, SamplePlan& plan);
void draw_rand_augment(const RandAugment& options, CounterRandom& random, SamplePlan& plan);
void add_step(SamplePlan& plan, Step step);
Filter filter_of(Interpolation interpolation);
// Rounds half to even, like Python, and limits the result to 1e9, which is far larger than any picture.
int rounded(double value);

// Executes the plan on decoded pixels. With `skip_crop`, `picture` is already the part that the first step, a crop,
// wants.
void run_plan(const SamplePlan& plan, const View& picture, bool skip_crop, void* out);

}  // namespace lockstep::data
