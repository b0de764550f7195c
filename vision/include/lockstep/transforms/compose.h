// Transforms in sequence, from a picture (encoded or not) to the numbers that a model takes.
//
// All parameters of a sample are drawn first, from its key and the size of the picture. They say which part has to be
// decoded, and which steps can be done together, before a pixel is touched. The last step writes the converted numbers
// to their final place. Each thread keeps its own memory for intermediate pictures, from sample to sample.
//
// Errors are DataError: kInvalidArgument for wrong arguments (transforms, or a picture that they cannot take), the
// decoder's code for bytes that cannot be decoded. Several threads may use a Compose at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/image/decode.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

enum class Precision {
  // Consecutive rotations, shifts and flips are one resampling. A JPEG whose wanted part is at least 4 times as wide
  // and
  // as high as its target is decoded at a half, quarter or eighth of its size, to at least twice the target.
  // docs/data.md
  // says how much pixels differ from kExact.
  kFast,
  // Each step by itself, with PIL's arithmetic, as torchvision's transforms (v1) of PIL images do it. For the same
  // parameters, pixels differ from theirs as docs/data.md says: in most steps not at all.
  kExact,
};

// A sample in memory: for each channel a plane of height x width numbers, without gaps. After FiveCrop and TenCrop, 5
// or 10 pictures one after another.
struct SampleShape {
  int channels = 3;
  int height = 0;
  int width = 0;
  bool is_float = true;  // else uint8
  int crops = 0;         // of FiveCrop or TenCrop; 0: one picture, without a dimension for crops
  bool operator==(const SampleShape&) const = default;
  std::size_t bytes() const {
    return static_cast<std::size_t>(crops > 0 ? crops : 1) * static_cast<std::size_t>(channels) *
           static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * (is_float ? sizeof(float) : 1);
  }
};

// The drawn parameters of one sample.
class SamplePlan;

class Compose {
 public:
  // Throws DataError (kInvalidArgument) that names the wrong transform and its fault: a size below 1, a range whose low
  // end is above its high end, Normalize without ToTensor, and so on.
  explicit Compose(std::vector<Transform> transforms = {}, Precision precision = Precision::kFast);
  // Compose({}): without this constructor it could as well be a copy of Compose().
  enum class NoTransforms {};
  explicit Compose(NoTransforms /*none*/) : Compose() {}
  ~Compose();
  Compose(const Compose&);
  Compose& operator=(const Compose&);
  Compose(Compose&&) noexcept;
  Compose& operator=(Compose&&) noexcept;

  const std::vector<Transform>& transforms() const;
  Precision precision() const;

  // Draws the parameters for a picture of this size (positive sides). Throws DataError (kInvalidArgument) when the
  // transforms cannot take it: RandomCrop of a picture that is too small, a picture that grows beyond 2^28 pixels. The
  // plan is valid until the thread's next draw(). `channels` 1: R, G and B are equal, and the sample gets one channel.
  const SamplePlan& draw(ImageSize picture, const SampleKey& key, int channels = 3) const;
  static SampleShape shape_of(const SamplePlan& plan);

  // Executes the plan. `out` has room for shape_of(plan), and all of it is written. Throws DataError: from encoded
  // bytes the decoder's code, without the name of the file (kCorrupt also when the pixels do not have the size that the
  // plan was drawn for); from an Image of another size kInvalidArgument. Exceptions of a Lambda pass through.
  void apply(const SamplePlan& plan, std::span<const std::uint8_t> encoded, const DecodeOptions& options,
             void* out) const;
  void apply(const SamplePlan& plan, const Image& picture, void* out) const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace lockstep::data
