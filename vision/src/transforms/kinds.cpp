// The list of all transforms, and the check of a Compose's list.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "transforms/kind.h"

namespace lockstep::data {

std::vector<Kind> size_kinds();
std::vector<Kind> crop_kinds();
std::vector<Kind> geometry_kinds();
std::vector<Kind> color_kinds();
std::vector<Kind> augment_kinds();
std::vector<Kind> number_kinds();
std::vector<Kind> list_kinds();

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> kinds;
    for (const auto of_file :
         {size_kinds, crop_kinds, geometry_kinds, color_kinds, augment_kinds, number_kinds, list_kinds}) {
      for (Kind& kind : of_file()) kinds.push_back(std::move(kind));
    }
    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.index < b.index; });
    for (std::size_t i = 0; i < std::variant_size_v<Transform::variant>; ++i) {
      if (kinds[i].index != i) throw std::logic_error(fmt::format("transform {} of the variant has no Kind", i));
    }
    return kinds;
  }();
  return all;
}

const Kind& kind_of(const Transform& transform) {
  return all_kinds()[transform.index()];
}

void Require::fail(std::string_view expected, const std::string& found) const {
  throw DataError(ErrorCode::kInvalidArgument,
                  fmt::format("{}, {}: expected {}, found {}", place, name, expected, found));
}

void is_size(const OutputSize& size, const Require& require) {
  for (const int side : {size.height, size.width}) {
    require(side >= 1 && side <= kLargestSide, fmt::format("a size from 1 to {}", kLargestSide), side);
  }
}

void is_padding(const Padding& padding, const Require& require) {
  for (const int amount : {padding.left, padding.top, padding.right, padding.bottom}) {
    require(amount >= -kLargestSide && amount <= kLargestSide,
            fmt::format("padding from {} to {}", -kLargestSide, kLargestSide), amount);
  }
}

void is_center(const std::optional<Point>& center, const Require& require) {
  if (center) require(std::isfinite(center->x) && std::isfinite(center->y), "a finite center", center->x);
}

void is_warp_filter(Interpolation interpolation, const Require& require) {
  require(interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear ||
              interpolation == Interpolation::kBicubic,
          "the interpolation kNearest, kBilinear or kBicubic", static_cast<int>(interpolation));
}

void is_range(const Interval01& range, double low, double high, const Require& require) {
  const bool finite = std::isfinite(range.low) && std::isfinite(range.high);
  require(finite && low <= range.low && range.low <= range.high && range.high <= high,
          fmt::format("{} (low, high) within {} and {}", require.parameter, low, high),
          fmt::format("({}, {})", range.low, range.high));
}

namespace {

// Throws for a fill of several levels: for pictures with one channel.
void check_grey_fill(const Transform& transform, const Require& require) {
  const auto check = [&](const auto& t) {
    if constexpr (requires { t.fill.color; }) {
      const auto [red, green, blue] = t.fill.color;
      require(red == green && green == blue, "one number as the fill of pictures with one channel",
              fmt::format("({}, {}, {})", red, green, blue));
    }
  };
  std::visit(check, transform);
}

void check_transform(const Transform& transform, const std::string& where, bool listed, SampleState& state) {
  const Kind& kind = kind_of(transform);
  const Require require{where, kind.name};
  kind.check(transform, require);
  kind.stands(transform, {state, require, listed});
  if (state.channels == 1) check_grey_fill(transform, require);
}

}  // namespace

void Place::changes_pixels() const {
  require(!state.floats, "transforms of pixels before ToTensor", "this one after it");
}

void Place::moves_pixels() const {
  require(!state.floats_changed, "crops and flips before RandomErasing and GaussianBlur of floats",
          "this one after them");
}

void Place::changes_floats() const {
  require(state.floats, "ToTensor before it", "none");
  state.floats_changed = true;
}

void Place::changes_samples() const {
  require(!listed, "no change of a sample's type or scale in a list", "it there");
}

void Place::has_numbers(std::size_t count) const {
  require(count == 1 || count == state.channels,
          fmt::format("1 number, or one for each of {} channels", state.channels), count);
}

void Place::has_list(const std::vector<Transform>& list) const {
  for (std::size_t i = 0; i < list.size(); ++i) {
    check_transform(list[i], fmt::format("{}, transform {} of {}", require.place, i, require.name), true, state);
  }
}

SampleState check_transforms(const std::vector<Transform>& transforms) {
  constexpr std::int64_t kMostStreams = 1 << 16;  // of CounterRandom
  SampleState state;
  std::int64_t streams = 0;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const std::string where = fmt::format("transform {} of Compose", i);
    check_transform(transforms[i], where, /*listed=*/false, state);
    streams += streams_of(transforms[i]);
    Require{where, kind_of(transforms[i]).name}(streams <= kMostStreams, "at most 65536 transforms", "more");
  }
  return state;
}

}  // namespace lockstep::data
