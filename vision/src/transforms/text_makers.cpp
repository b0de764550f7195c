#include "transforms/text_makers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep::data::text {
namespace {

template <typename T>
Transform with_p(Arguments& a, T t) {
  a.optional("p", t.p);
  return t;
}

template <typename T>
Transform policy(Arguments& a, T t) {
  a.optional("interpolation", t.interpolation);
  a.optional("fill", t.fill);
  return t;
}

// torchvision ignores it for PIL's pictures too, which it always resizes so.
void read_antialias(Arguments& a) {
  std::optional<bool> antialias;
  if (a.optional("antialias", antialias) && antialias == false) {
    log::warning("transforms: antialias=False has no effect; pictures are always resized with it, as by PIL");
  }
}

// Whether the result takes the place of the input does not concern who gets samples.
void read_inplace(Arguments& a) {
  bool inplace = false;
  a.optional("inplace", inplace);
}

std::map<std::string, Maker> size_makers() {
  return {
      {"Resize",
       [](Arguments& a) -> Transform {
         Resize t{1};
         a.required("size", t.size);
         a.optional("interpolation", t.interpolation);
         a.optional("max_size", t.max_size);
         read_antialias(a);
         return t;
       }},
      {"RandomResize",
       [](Arguments& a) -> Transform {
         RandomResize t{1, 2};
         a.required("min_size", t.min_size);
         a.required("max_size", t.max_size);
         a.optional("interpolation", t.interpolation);
         read_antialias(a);
         return t;
       }},
      {"ScaleJitter",
       [](Arguments& a) -> Transform {
         ScaleJitter t{1};
         a.required("target_size", t.target_size);
         a.optional("scale_range", t.scale_range);
         a.optional("interpolation", t.interpolation);
         read_antialias(a);
         return t;
       }},
      {"Pad",
       [](Arguments& a) -> Transform {
         Pad t{0};
         a.required("padding", t.padding);
         a.optional("fill", t.fill);
         a.optional("padding_mode", t.padding_mode);
         return t;
       }},
  };
}

std::map<std::string, Maker> crop_makers() {
  return {
      {"CenterCrop",
       [](Arguments& a) -> Transform {
         CenterCrop t{1};
         a.required("size", t.size);
         return t;
       }},
      {"RandomResizedCrop",
       [](Arguments& a) -> Transform {
         RandomResizedCrop t{1};
         a.required("size", t.size);
         a.optional("scale", t.scale);
         a.optional("ratio", t.ratio);
         a.optional("interpolation", t.interpolation);
         read_antialias(a);
         return t;
       }},
      {"RandomCrop",
       [](Arguments& a) -> Transform {
         RandomCrop t{1};
         a.required("size", t.size);
         a.optional("padding", t.padding);
         a.optional("pad_if_needed", t.pad_if_needed);
         a.optional("fill", t.fill);
         a.optional("padding_mode", t.padding_mode);
         return t;
       }},
      {"FiveCrop",
       [](Arguments& a) -> Transform {
         FiveCrop t{1};
         a.required("size", t.size);
         return t;
       }},
      {"TenCrop",
       [](Arguments& a) -> Transform {
         TenCrop t{1};
         a.required("size", t.size);
         a.optional("vertical_flip", t.vertical_flip);
         return t;
       }},
  };
}

// Shear: one number or two along x, four for both axes.
void read_shear(Arguments& a, RandomAffine& t) {
  std::vector<double> shear;
  if (!a.optional("shear", shear) || shear.empty()) return;
  if (shear.size() == 3 || shear.size() > 4)
    refuse(fmt::format("parameter 'shear': expected 1, 2 or 4 numbers, found {}", shear.size()));
  t.shear = shear.size() == 1 ? AngleRange(shear[0]) : AngleRange(shear[0], shear[1]);
  if (shear.size() == 4) t.shear_y = AngleRange(shear[2], shear[3]);
}

std::map<std::string, Maker> geometry_makers() {
  return {
      {"RandomHorizontalFlip", [](Arguments& a) { return with_p(a, RandomHorizontalFlip{}); }},
      {"RandomVerticalFlip", [](Arguments& a) { return with_p(a, RandomVerticalFlip{}); }},
      {"RandomRotation",
       [](Arguments& a) -> Transform {
         RandomRotation t{0.0};
         a.required("degrees", t.degrees);
         a.optional("interpolation", t.interpolation);
         a.optional("expand", t.expand);
         a.optional("center", t.center);
         a.optional("fill", t.fill);
         return t;
       }},
      {"RandomAffine",
       [](Arguments& a) -> Transform {
         RandomAffine t{0.0};
         a.required("degrees", t.degrees);
         a.optional("translate", t.translate);
         a.optional("scale", t.scale);
         read_shear(a, t);
         a.optional("interpolation", t.interpolation);
         a.optional("fill", t.fill);
         a.optional("center", t.center);
         return t;
       }},
      {"RandomPerspective",
       [](Arguments& a) -> Transform {
         RandomPerspective t;
         a.optional("distortion_scale", t.distortion_scale);
         a.optional("p", t.p);
         a.optional("interpolation", t.interpolation);
         a.optional("fill", t.fill);
         return t;
       }},
      {"ElasticTransform",
       [](Arguments& a) -> Transform {
         ElasticTransform t;
         a.optional("alpha", t.alpha);
         a.optional("sigma", t.sigma);
         a.optional("interpolation", t.interpolation);
         a.optional("fill", t.fill);
         return t;
       }},
  };
}

std::map<std::string, Maker> color_makers() {
  return {
      {"ColorJitter",
       [](Arguments& a) -> Transform {
         ColorJitter t;
         a.optional("brightness", t.brightness);
         a.optional("contrast", t.contrast);
         a.optional("saturation", t.saturation);
         a.optional("hue", t.hue);
         return t;
       }},
      {"Grayscale",
       [](Arguments& a) -> Transform {
         Grayscale t;
         a.optional("num_output_channels", t.num_output_channels);
         return t;
       }},
      {"RandomGrayscale", [](Arguments& a) { return with_p(a, RandomGrayscale{}); }},
      {"GaussianBlur",
       [](Arguments& a) -> Transform {
         GaussianBlur t{1};
         a.required("kernel_size", t.kernel_size);
         a.optional("sigma", t.sigma);
         return t;
       }},
      {"RandomInvert", [](Arguments& a) { return with_p(a, RandomInvert{}); }},
      {"RandomPosterize",
       [](Arguments& a) {
         RandomPosterize t{8};
         a.required("bits", t.bits);
         return with_p(a, t);
       }},
      {"RandomSolarize",
       [](Arguments& a) {
         RandomSolarize t{0};
         a.required("threshold", t.threshold);
         return with_p(a, t);
       }},
      {"RandomAdjustSharpness",
       [](Arguments& a) {
         RandomAdjustSharpness t{1};
         a.required("sharpness_factor", t.sharpness_factor);
         return with_p(a, t);
       }},
      {"RandomAutocontrast", [](Arguments& a) { return with_p(a, RandomAutocontrast{}); }},
      {"RandomEqualize", [](Arguments& a) { return with_p(a, RandomEqualize{}); }},
  };
}

std::map<std::string, Maker> augment_makers() {
  return {
      {"AutoAugment",
       [](Arguments& a) {
         AutoAugment t;
         a.optional("policy", t.policy);
         return policy(a, t);
       }},
      {"RandAugment",
       [](Arguments& a) {
         RandAugment t;
         a.optional("num_ops", t.num_ops);
         a.optional("magnitude", t.magnitude);
         a.optional("num_magnitude_bins", t.num_magnitude_bins);
         return policy(a, t);
       }},
      {"TrivialAugmentWide",
       [](Arguments& a) {
         TrivialAugmentWide t;
         a.optional("num_magnitude_bins", t.num_magnitude_bins);
         return policy(a, t);
       }},
      {"AugMix",
       [](Arguments& a) {
         AugMix t;
         a.optional("severity", t.severity);
         a.optional("mixture_width", t.mixture_width);
         a.optional("chain_depth", t.chain_depth);
         a.optional("alpha", t.alpha);
         a.optional("all_ops", t.all_ops);
         return policy(a, t);
       }},
  };
}

// Samples are bytes, as after PILToTensor, until they are floats.
Transform conversion(NumberType type) {
  return type == NumberType::kFloat ? Transform(ConvertImageDtype{}) : Transform(PILToTensor{});
}

std::map<std::string, Maker> conversion_makers() {
  return {
      {"ToTensor", [](Arguments&) -> Transform { return ToTensor{}; }},
      {"PILToTensor", [](Arguments&) -> Transform { return PILToTensor{}; }},
      {"ToImage", [](Arguments&) -> Transform { return PILToTensor{}; }},
      {"ConvertImageDtype",
       [](Arguments& a) {
         NumberType type = NumberType::kFloat;
         a.optional("dtype", type);
         return conversion(type);
       }},
      {"ToDtype",
       [](Arguments& a) {
         NumberType type = NumberType::kFloat;
         bool scale = false;
         a.required("dtype", type);
         a.optional("scale", scale);
         if (type == NumberType::kFloat && !scale) refuse("expected scale=True: floats are from 0 to 1");
         return conversion(type);
       }},
      {"Normalize",
       [](Arguments& a) -> Transform {
         Normalize t;
         a.required("mean", t.mean);
         a.required("std", t.std);
         read_inplace(a);
         return t;
       }},
  };
}

std::map<std::string, Maker> other_makers() {
  return {
      {"RandomErasing",
       [](Arguments& a) -> Transform {
         RandomErasing t;
         a.optional("p", t.p);
         a.optional("scale", t.scale);
         a.optional("ratio", t.ratio);
         ErasingValue value{t.value, t.random};
         a.optional("value", value);
         read_inplace(a);
         return t;
       }},
      // That is what a Compose within a list is: one of the list's transforms.
      {"Compose",
       [](Arguments& a) -> Transform {
         TransformSequence sequence;
         a.required("transforms", sequence);
         return RandomApply{std::move(sequence.transforms), 1.0};
       }},
      {"RandomApply",
       [](Arguments& a) {
         RandomApply t;
         a.required("transforms", t.transforms);
         return with_p(a, t);
       }},
      {"RandomChoice",
       [](Arguments& a) {
         RandomChoice t;
         a.required("transforms", t.transforms);
         return with_p(a, t);
       }},
      {"RandomOrder",
       [](Arguments& a) -> Transform {
         RandomOrder t;
         a.required("transforms", t.transforms);
         return t;
       }},
  };
}

}  // namespace

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = [] {
    std::map<std::string, Maker> sum = crop_makers();
    for (auto part :
         {size_makers(), geometry_makers(), color_makers(), augment_makers(), conversion_makers(), other_makers()})
      sum.merge(part);
    return sum;
  }();
  return all;
}

}  // namespace lockstep::data::text
