// Checks which transforms may follow which.
#include "transforms/check.h"

#include <fmt/format.h>

#include "transforms/step.h"

namespace lockstep::data {
namespace {

template <class... Types>
bool is_one_of(const Transform& transform) {
  return (std::holds_alternative<Types>(transform) || ...);
}

// Whether it only moves pixels: it can be done before the conversion to float instead.
bool moves_pixels(const Transform& transform) {
  if (const auto* crop = std::get_if<RandomCrop>(&transform)) return !crop->padding && !crop->pad_if_needed;
  return is_one_of<RandomHorizontalFlip, RandomVerticalFlip, FiveCrop, TenCrop>(transform);
}

// Goes through a list in order, and into the lists in it.
class Sequence {
 public:
  void check(const Transform& transform, const std::string& place, bool listed) {
    check_parameters(transform, place);
    const std::string_view name = name_of(transform);
    const auto require = [&](bool right, std::string_view expected, std::string_view found) {
      if (!right) fail_transform(place, name, expected, found);
    };
    const bool converts = is_one_of<ToTensor, ConvertImageDtype>(transform);
    const bool normalizes = is_one_of<Normalize>(transform);
    const bool crops = is_one_of<FiveCrop, TenCrop>(transform);
    const bool of_all_samples = converts || normalizes || is_one_of<PILToTensor>(transform);
    require(!listed || !(of_all_samples || crops),
            "no change of a sample's type, scale or number of pictures in a list", "it there");
    require(!crops_ || of_all_samples, "only conversions and Normalize after FiveCrop or TenCrop", "it");
    require(!(is_one_of<ToTensor>(transform) && floats_), "ToTensor once", "it again");
    require(!(normalizes && normalized_), "Normalize once", "it again");
    require(floats_ || !(normalizes || is_one_of<RandomErasing>(transform)), "ToTensor before it", "none");
    if (floats_) check_on_floats(transform, require);
    check_channels(transform, listed, require);
    if (channels_ == 1) check_grey_fill(transform, place);
    floats_ |= converts;
    normalized_ |= normalizes;
    crops_ |= crops;
    const std::vector<Transform>* list = listed_transforms(transform);
    if (list == nullptr) return;
    const bool before = changed_;
    check_list(*list, name, place);
    // In another order the last transform may come first. The second check is only for lists that can change its
    // result, because each level of lists in lists would double the work.
    if (is_one_of<RandomOrder>(transform) && changed_ != before) check_list(*list, name, place);
  }

 private:
  void check_list(const std::vector<Transform>& list, std::string_view name, const std::string& place) {
    for (std::size_t i = 0; i < list.size(); ++i)
      check(list[i], fmt::format("{}, transform {} of {}", place, i, name), true);
  }

  template <class Require>
  void check_on_floats(const Transform& transform, const Require& require) {
    const bool changes = is_one_of<RandomErasing, GaussianBlur>(transform);
    const bool moves = moves_pixels(transform);
    const bool may_follow =
        is_one_of<Normalize, ConvertImageDtype>(transform) || listed_transforms(transform) != nullptr;
    require(changes || moves || may_follow, "transforms of pixels before ToTensor", "this one after it");
    require(!(moves && changed_), "crops and flips before RandomErasing and GaussianBlur of floats",
            "this one after them");
    changed_ |= changes;
  }

  // Lists have one number for all channels, or one for each channel.
  template <class Require>
  void check_channels(const Transform& transform, bool listed, const Require& require) {
    std::vector<std::size_t> counts;
    if (const auto* grey = std::get_if<Grayscale>(&transform)) {
      require(!listed || grey->num_output_channels == 3, "3 output channels in a list", "1");
      channels_ = static_cast<std::size_t>(grey->num_output_channels);
    } else if (const auto* normalize = std::get_if<Normalize>(&transform)) {
      counts = {normalize->mean.size(), normalize->std.size()};
    } else if (const auto* erasing = std::get_if<RandomErasing>(&transform)) {
      counts = {erasing->value.size()};
    }
    for (const std::size_t count : counts) {
      require(count == 1 || count == channels_, fmt::format("1 number, or one for each of {} channels", channels_),
              fmt::format("{}", count));
    }
  }

  bool floats_ = false;
  bool normalized_ = false;
  bool crops_ = false;
  bool changed_ = false;  // pixels of floats were changed: moves can no longer be done before the conversion
  std::size_t channels_ = 3;
};

}  // namespace

void check_transforms(const std::vector<Transform>& transforms) {
  constexpr std::int64_t kMostStreams = 1 << 16;  // of CounterRandom
  Sequence sequence;
  std::int64_t streams = 0;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const std::string place = fmt::format("transform {} of Compose", i);
    sequence.check(transforms[i], place, /*listed=*/false);
    streams += streams_of(transforms[i]);
    if (streams > kMostStreams) fail_transform(place, name_of(transforms[i]), "at most 65536 transforms", "more");
  }
}

}  // namespace lockstep::data
