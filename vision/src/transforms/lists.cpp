// Transforms that hold lists of transforms: which of them a sample gets, and the random numbers of each.
#include <algorithm>
#include <numeric>

#include "transforms/step.h"

namespace lockstep::data {
namespace {

// Draws transforms one after another; they share the numbering of streams.
class ListDrawer {
 public:
  ListDrawer(const SampleKey& key, SamplePlan& plan) : key_(key), plan_(plan) {}

  void all(const std::vector<Transform>& transforms, std::int64_t stream) const {
    for (const Transform& transform : transforms) {
      one(transform, stream);
      stream += streams_of(transform);
    }
  }

 private:
  void one(const Transform& transform, std::int64_t stream) const {
    CounterRandom random(key_, static_cast<std::uint16_t>(stream));
    if (const auto* apply = std::get_if<RandomApply>(&transform)) {
      if (random.chance(apply->p)) all(apply->transforms, stream + 1);
    } else if (const auto* choice = std::get_if<RandomChoice>(&transform)) {
      at(choice->transforms, chosen(*choice, random), stream);
    } else if (const auto* order = std::get_if<RandomOrder>(&transform)) {
      for (const std::size_t place : shuffled(order->transforms.size(), random)) at(order->transforms, place, stream);
    } else {
      draw_steps(transform, random, plan_);
    }
  }

  // The transform at this place of the list of the transform with this stream. Its numbers do not depend on which
  // others of the list were taken.
  void at(const std::vector<Transform>& list, std::size_t place, std::int64_t stream) const {
    ++stream;
    for (std::size_t i = 0; i < place; ++i) stream += streams_of(list[i]);
    one(list[place], stream);
  }

  static std::size_t chosen(const RandomChoice& choice, CounterRandom& random) {
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

  static std::vector<std::size_t> shuffled(std::size_t count, CounterRandom& random) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = count; i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
    }
    return order;
  }

  const SampleKey& key_;
  SamplePlan& plan_;
};

}  // namespace

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

void draw_all(const std::vector<Transform>& transforms, const SampleKey& key, SamplePlan& plan) {
  ListDrawer(key, plan).all(transforms, 0);
}

}  // namespace lockstep::data
