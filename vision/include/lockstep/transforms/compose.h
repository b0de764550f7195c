// Transforms in sequence, from a picture (a file's bytes or pixels) to the numbers that a model takes.
//
// Compose first draws all parameters of a sample, from the sample's key and the size of the picture. So it knows,
// before it touches a pixel, which part of the file to decode and which steps to do together. The last step writes the
// converted numbers to their final place. Each thread keeps its memory for intermediate pictures from sample to sample.
//
// Errors are DataError: kInvalidArgument for wrong transforms and for a picture that the transforms cannot take, the
// decoder's code for bytes that cannot be decoded. Several threads may use a Compose at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/image/decode.h"
#include "lockstep/transforms/transforms.h"

namespace lockstep::data {

enum class Precision {
  // Consecutive rotations, shifts and flips are one resampling. A JPEG whose wanted part is at least 4 times as wide
  // and as high as the target is decoded at a half, a quarter or an eighth of its size, to at least twice the target.
  // docs/data.md says how much the pixels differ from kExact.
  kFast,
  // Each step is done by itself, with PIL's arithmetic, as torchvision's transforms (v1) of PIL images do it. For the
  // same parameters, most steps give torchvision's pixels; docs/data.md lists the others with their differences.
  kExact,
};

// A sample in memory: for each channel a plane of height x width numbers, without gaps.
struct SampleShape {
  int channels = 3;
  int height = 0;
  int width = 0;
  bool is_float = true;  // else uint8
  bool operator==(const SampleShape&) const = default;
  std::size_t bytes() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
           (is_float ? sizeof(float) : 1);
  }
};

struct Plan;  // internal

// The drawn parameters of one sample, for the Compose that drew them. A value: copies share the parameters, which do
// not change. A copy of that Compose must exist as long as the plan is in use.
class SamplePlan {
 public:
  explicit SamplePlan(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  const Plan& operator*() const { return *plan_; }
  const Plan* operator->() const { return plan_.get(); }

 private:
  std::shared_ptr<const Plan> plan_;
};

class Compose {
 public:
  // Throws DataError (kInvalidArgument) that names the wrong transform and the fault: a size below 1, a range whose low
  // end is above the high end, Normalize without ToTensor, and so on.
  explicit Compose(std::vector<Transform> transforms = {}, Precision precision = Precision::kFast);
  // Compose({}): without this constructor, {} could also mean a default Compose to copy.
  enum class NoTransforms {};
  explicit Compose(NoTransforms /*none*/) : Compose() {}

  const std::vector<Transform>& transforms() const;
  Precision precision() const;

  // Draws the parameters for a picture of this size (positive sides). Throws DataError (kInvalidArgument) when the
  // transforms cannot take the picture: RandomCrop of a picture that is too small, a picture that grows beyond 2^28
  // pixels.
  SamplePlan draw(ImageSize picture, const SampleKey& key) const;
  static SampleShape shape_of(const SamplePlan& plan);

  // Executes the plan, and writes shape_of(plan).bytes() to `out`. Throws DataError. For encoded bytes the code is the
  // decoder's, and kCorrupt when the pixels have another size than the plan was drawn for; the message does not name
  // the file. For an Image of another size the code is kInvalidArgument. Exceptions of a Lambda pass through.
  void apply(const SamplePlan& plan, std::span<const std::uint8_t> encoded, const DecodeOptions& options,
             void* out) const;
  void apply(const SamplePlan& plan, const Image& picture, void* out) const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace lockstep::data
