// Transforms that resize. Sizes and boxes have torchvision's rounding.
#include <algorithm>
#include <cmath>

#include "lockstep/base/log.h"
#include "transforms/kind.h"

namespace lockstep::data {

ImageSize resized_size(ImageSize picture, const Resize& resize) {
  if (const auto* size = std::get_if<OutputSize>(&resize.size)) return {size->width, size->height};
  const bool upright = picture.width <= picture.height;
  const double short_side = upright ? picture.width : picture.height;
  const double long_side = upright ? picture.height : picture.width;
  int new_short = std::get<int>(resize.size);
  const double proportional = new_short * long_side / short_side;  // may not fit an int for a picture of one row
  int new_long = static_cast<int>(std::min<double>(proportional, std::numeric_limits<int>::max()));
  if (resize.max_size && new_long > *resize.max_size) {
    new_short = std::max(static_cast<int>(static_cast<double>(*resize.max_size) * new_short / new_long), 1);
    new_long = *resize.max_size;
  }
  return upright ? ImageSize{new_short, new_long} : ImageSize{new_long, new_short};
}

Box random_resized_crop_box(ImageSize picture, Interval01 scale, Interval01 ratio, CounterRandom& random) {
  constexpr int kAttempts = 10;
  const double area = static_cast<double>(picture.width) * picture.height;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double target = area * random.uniform(scale.low, scale.high);
    const double aspect = std::exp(random.uniform(std::log(ratio.low), std::log(ratio.high)));
    const int width = rounded(std::sqrt(target * aspect));
    const int height = rounded(std::sqrt(target / aspect));
    if (width < 1 || width > picture.width || height < 1 || height > picture.height) continue;
    const auto top = static_cast<int>(random.below(picture.height - height + 1));
    const auto left = static_cast<int>(random.below(picture.width - width + 1));
    return {left, top, width, height};
  }
  const double aspect = static_cast<double>(picture.width) / picture.height;
  Box box{0, 0, picture.width, picture.height};
  if (aspect < ratio.low) box.height = std::clamp(rounded(picture.width / ratio.low), 1, picture.height);
  if (aspect > ratio.high) box.width = std::clamp(rounded(picture.height * ratio.high), 1, picture.width);
  box.left = (picture.width - box.width) / 2;
  box.top = (picture.height - box.height) / 2;
  return box;
}

namespace {

// A picture of this size already is left alone.
void resize_to(ImageSize size, Interpolation interpolation, Drawing& d) {
  if (size != d.plan.size) d.add(ResizeStep{size, interpolation});
}

// torchvision ignores `antialias` for PIL's pictures too: they are always resized with it.
template <class T>
Parameter<T> antialias() {
  return {{"antialias", false}, [](const TextValue& value, T&) {
            std::optional<bool> antialias;
            text::read(value, antialias);
            if (antialias == false)
              log::warning("transforms: antialias=False has no effect; pictures are always resized with it, as by PIL");
          }};
}

void check_resize(const Resize& t, const Require& require) {
  if (const auto* both = std::get_if<OutputSize>(&t.size)) {
    is_size(*both, require);
    return require(!t.max_size, "max_size only with one number as size", 2);
  }
  const int side = std::get<int>(t.size);
  is_size(side, require);
  if (t.max_size) require(*t.max_size > side, fmt::format("max_size above the size {}", side), *t.max_size);
}

}  // namespace

std::vector<Kind> size_kinds() {
  return {
      About<Resize>{
          .name = "Resize",
          .parameters = {required("size", &Resize::size), optional("interpolation", &Resize::interpolation),
                         optional("max_size", &Resize::max_size), antialias<Resize>()},
          .draw = [](const auto& t, Drawing& d) { resize_to(resized_size(d.plan.size, t), t.interpolation, d); },
          .check = check_resize,
      },
      About<RandomResizedCrop>{
          .name = "RandomResizedCrop",
          .defaults = {1},
          .parameters = {required("size", &RandomResizedCrop::size, is_size),
                         optional("scale", &RandomResizedCrop::scale, range(0.0, kInfinity)),
                         optional("ratio", &RandomResizedCrop::ratio, range(kAboveZero, kInfinity)),
                         optional("interpolation", &RandomResizedCrop::interpolation), antialias<RandomResizedCrop>()},
          .draw =
              [](const auto& t, Drawing& d) {
                d.add(CropStep{random_resized_crop_box(d.plan.size, t.scale, t.ratio, d.random)});
                resize_to({t.size.width, t.size.height}, t.interpolation, d);
              },
      },
  };
}

}  // namespace lockstep::data
