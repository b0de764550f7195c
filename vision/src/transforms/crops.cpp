// Transforms that crop, and Pad.
#include <algorithm>

#include "transforms/kind.h"

namespace lockstep::data {

namespace {

// Negative amounts crop. As in PIL, kConstant then makes a picture of the fill's colour even if nothing is left.
void add_padding(Plan& plan, const Padding& padding, const Fill& fill, PaddingMode mode) {
  const PadStep all{{padding.left, padding.top, padding.right, padding.bottom}, fill.color, mode};
  const ImageSize after = all.size_after(plan.size);
  const Box kept{std::max(-padding.left, 0), std::max(-padding.top, 0),
                 plan.size.width + std::min(padding.left, 0) + std::min(padding.right, 0),
                 plan.size.height + std::min(padding.top, 0) + std::min(padding.bottom, 0)};
  if (kept.empty() && mode == PaddingMode::kConstant && after.width > 0 && after.height > 0) return add_step(plan, all);
  if (kept.empty()) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("Pad: negative padding leaves nothing of a picture of {} x {}", plan.size.width, plan.size.height));
  }
  if (kept.width != plan.size.width || kept.height != plan.size.height) add_step(plan, CropStep{kept});
  const PadAmounts amounts{std::max(padding.left, 0), std::max(padding.top, 0), std::max(padding.right, 0),
                           std::max(padding.bottom, 0)};
  if (amounts != PadAmounts{}) add_step(plan, PadStep{amounts, fill.color, mode});
}

void draw_center_crop(const CenterCrop& t, Drawing& d) {
  const int wide = std::max(t.size.width - d.plan.size.width, 0);
  const int high = std::max(t.size.height - d.plan.size.height, 0);
  if (wide > 0 || high > 0)
    d.add(PadStep{{wide / 2, high / 2, (wide + 1) / 2, (high + 1) / 2}, {}, PaddingMode::kConstant});
  d.add(CropStep{{rounded((d.plan.size.width - t.size.width) / 2.0),
                  rounded((d.plan.size.height - t.size.height) / 2.0), t.size.width, t.size.height}});
}

void draw_random_crop(const RandomCrop& t, Drawing& d) {
  const auto pad = [&](const Padding& padding) { add_padding(d.plan, padding, t.fill, t.padding_mode); };
  if (t.padding) pad(*t.padding);
  const int wide = std::max(t.size.width - d.plan.size.width, 0);
  const int high = std::max(t.size.height - d.plan.size.height, 0);
  if (t.pad_if_needed && wide > 0) pad({wide, 0});
  if (t.pad_if_needed && high > 0) pad({0, high});
  const int free_x = d.plan.size.width - t.size.width;
  const int free_y = d.plan.size.height - t.size.height;
  if (free_x < 0 || free_y < 0) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("RandomCrop: expected a picture of at least {} x {}, found {} x {}; resize first or "
                                "set pad_if_needed",
                                t.size.width, t.size.height, d.plan.size.width, d.plan.size.height));
  }
  const auto top = static_cast<int>(d.random.below(free_y + 1));
  const auto left = static_cast<int>(d.random.below(free_x + 1));
  d.add(CropStep{{left, top, t.size.width, t.size.height}});
}

}  // namespace

std::vector<Kind> crop_kinds() {
  return {
      About<CenterCrop>{
          .name = "CenterCrop",
          .defaults = {1},
          .parameters = {required("size", &CenterCrop::size, is_size)},
          .draw = draw_center_crop,
      },
      About<RandomCrop>{
          .name = "RandomCrop",
          .defaults = {1},
          .parameters = {required("size", &RandomCrop::size, is_size),
                         optional("padding", &RandomCrop::padding, if_set(is_padding)),
                         optional("pad_if_needed", &RandomCrop::pad_if_needed), fill<RandomCrop>(),
                         optional("padding_mode", &RandomCrop::padding_mode)},
          .draw = draw_random_crop,
          .stands =
              [](const auto& t, const Place& place) {
                t.padding || t.pad_if_needed ? place.changes_pixels() : place.moves_pixels();
              },
      },
      About<Pad>{
          .name = "Pad",
          .defaults = {0},
          .parameters = {required("padding", &Pad::padding, is_padding), fill<Pad>(),
                         optional("padding_mode", &Pad::padding_mode)},
          .draw = [](const auto& t, Drawing& d) { add_padding(d.plan, t.padding, t.fill, t.padding_mode); },
      },
  };
}

}  // namespace lockstep::data
