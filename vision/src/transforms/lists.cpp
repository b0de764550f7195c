// Transforms that hold lists of transforms, and Lambda.
#include <cmath>
#include <numeric>

#include "transforms/kind.h"

namespace lockstep::data {

const std::vector<Transform>* listed_transforms(const Transform& transform) {
  if (const auto* apply = std::get_if<RandomApply>(&transform)) return &apply->transforms;
  if (const auto* choice = std::get_if<RandomChoice>(&transform)) return &choice->transforms;
  if (const auto* order = std::get_if<RandomOrder>(&transform)) return &order->transforms;
  return nullptr;
}

std::int64_t streams_of(const Transform& transform) {
  std::int64_t count = 1;
  if (const std::vector<Transform>* list = listed_transforms(transform)) {
    for (const Transform& listed : *list) count += streams_of(listed);
  }
  return count;
}

namespace {

// Draws the transform at this place of the list. The numbers of a transform do not depend on which others of the list
// were taken.
void draw_one(const std::vector<Transform>& list, std::size_t place, const Drawing& d) {
  std::int64_t stream = d.stream + 1;
  for (std::size_t i = 0; i < place; ++i) stream += streams_of(list[i]);
  draw_transform(list[place], d.key, stream, d.plan);
}

std::size_t chosen(const RandomChoice& choice, CounterRandom& random) {
  const std::size_t count = choice.transforms.size();
  if (choice.p.empty()) return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));
  double left = random.uniform() * std::accumulate(choice.p.begin(), choice.p.end(), 0.0);
  std::size_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (choice.p[i] == 0.0) continue;
    last = i;
    if (left < choice.p[i]) return i;
    left -= choice.p[i];
  }
  return last;  // the rounding of the differences has left a rest
}

std::vector<std::size_t> shuffled(std::size_t count, CounterRandom& random) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

void check_choice(const RandomChoice& t, const Require& require) {
  require(!t.transforms.empty(), "at least one transform", "none");
  require(t.p.empty() || t.p.size() == t.transforms.size(),
          fmt::format("no p, or one number in p for each of {} transforms", t.transforms.size()), t.p.size());
  double sum = 0.0;
  for (const double p : t.p) {
    require(p >= 0 && std::isfinite(p), "no negative number in p", p);
    sum += p;
  }
  require(t.p.empty() || (sum > 0 && std::isfinite(sum)), "a positive number in p", sum);
}

// In another order the last transform may come first. The second check is only for lists that can change its result,
// because each level of lists in lists would double the work.
void place_order(const RandomOrder& t, const Place& place) {
  const bool before = place.state.floats_changed;
  place.has_list(t.transforms);
  if (place.state.floats_changed != before) place.has_list(t.transforms);
}

}  // namespace

void LambdaStep::run(const View& in, RowSink& sink) const {
  Image& image = memory_of_thread<Image>();
  {
    ImageSink copy(image, {in.width, in.height});
    copy_rows(in, copy);
  }
  {
    CounterRandom numbers = random;
    const LambdaScope scope;
    lambda->apply(image, numbers);
  }
  if (image.width() != in.width || image.height() != in.height) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("Lambda: expected that it keeps the size of its picture, {} x {}, found {} x {}",
                                in.width, in.height, image.width(), image.height()));
  }
  copy_rows(image, sink);
}

std::vector<Kind> list_kinds() {
  return {
      About<Lambda>{
          .name = "Lambda",
          .draw =
              [](const auto& t, Drawing& d) {
                d.add(LambdaStep{&t, d.random});
              },
          .check = [](const auto& t, const Require& require) { require(t.apply != nullptr, "a function", "none"); },
          .has_text = false,
      },
      About<RandomApply>{
          .name = "RandomApply",
          .parameters = {required("transforms", &RandomApply::transforms), probability<RandomApply>()},
          .draw =
              [](const auto& t, Drawing& d) {
                if (d.random.chance(t.p)) draw_all(t.transforms, d.key, d.stream + 1, d.plan);
              },
          .stands = [](const auto& t, const Place& place) { place.has_list(t.transforms); },
      },
      // A Compose in a list is one of the list's transforms.
      AboutText<RandomApply>{
          .name = "Compose",
          .defaults = {{}, 1.0},
          .parameters = {{{"transforms", true},
                          [](const TextValue& value, RandomApply& t) { text::read_flat(value, t.transforms); }}},
          .make = [](RandomApply t) -> Transform { return t; },
      },
      About<RandomChoice>{
          .name = "RandomChoice",
          .parameters = {required("transforms", &RandomChoice::transforms), optional("p", &RandomChoice::p)},
          .draw = [](const auto& t, Drawing& d) { draw_one(t.transforms, chosen(t, d.random), d); },
          .stands = [](const auto& t, const Place& place) { place.has_list(t.transforms); },
          .check = check_choice,
      },
      About<RandomOrder>{
          .name = "RandomOrder",
          .parameters = {required("transforms", &RandomOrder::transforms)},
          .draw =
              [](const auto& t, Drawing& d) {
                for (const std::size_t place : shuffled(t.transforms.size(), d.random))
                  draw_one(t.transforms, place, d);
              },
          .stands = place_order,
      },
  };
}

}  // namespace lockstep::data
