// What a step makes of the picture's size. A new step does not compile before it has a place here.
#include "transforms/step.h"

#include <type_traits>
#include <variant>

namespace lockstep::data {
namespace {

template <typename T, typename... Types>
constexpr bool kIsAmong = (std::is_same_v<T, Types> || ...);

template <typename T>
concept KeepsSize = kIsAmong<T, MirrorStep, PerspectiveStep, ElasticStep, BrightnessStep, ContrastStep, SaturationStep,
                             HueStep, SharpnessStep, PosterizeStep, SolarizeStep, InvertStep, AutoContrastStep,
                             EqualizeStep, GreyStep, BlurStep, LambdaStep, MixStep>;

struct SizeAfter {
  ImageSize before;

  ImageSize operator()(const CropStep& step) const { return {step.box.width, step.box.height}; }
  ImageSize operator()(const ResizeStep& step) const { return step.size; }
  ImageSize operator()(const WarpStep& step) const { return step.size; }
  ImageSize operator()(const PadStep& step) const {
    const PadAmounts& a = step.amounts;
    return {before.width + a.left + a.right, before.height + a.top + a.bottom};
  }
  template <KeepsSize Other>
  ImageSize operator()(const Other& /*step*/) const {
    return before;
  }
};

}  // namespace

ImageSize size_after(const Step& step, ImageSize size) {
  return std::visit(SizeAfter{size}, step);
}

}  // namespace lockstep::data
