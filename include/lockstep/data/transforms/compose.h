// Transforms in sequence, from a picture (encoded or not) to the numbers that a model takes.
//
// All parameters of a sample are drawn first, from its key and the size of the picture. What has to be decoded, and
// which steps can be done at once, is then known before a pixel is touched; the last step writes converted numbers
// straight to where they are wanted. Memory in between belongs to the thread and is kept from sample to sample.
//
// A Compose may be used by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/data/image/decode.h"
#include "lockstep/data/transforms/transforms.h"

namespace lockstep::data {

enum class Precision {
  // Consecutive rotations, shifts and flips are one resampling; a JPEG whose wanted part is at least twice as large as
  // its target is decoded at a half, quarter or eighth; chroma is not smoothed. Differences are those of another
  // viewer's decoder and of sub-pixel positions; docs/data.md has figures.
  kFast,
  // Each step by itself with torchvision's arithmetic (PIL), on the same decoded pixels.
  kExact,
};

// What a sample looks like in memory: channels planes of height rows of width numbers, without gaps.
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

// The drawn parameters of one sample.
class SamplePlan;

class Compose {
 public:
  // Throws DataError (kInvalidArgument) naming the transform and what is wrong with it: sizes below 1, ranges the wrong
  // way round, Normalize without ToTensor, and so on.
  explicit Compose(std::vector<Transform> transforms = {}, Precision precision = Precision::kFast);
  ~Compose();
  Compose(const Compose&);
  Compose& operator=(const Compose&);
  Compose(Compose&&) noexcept;
  Compose& operator=(Compose&&) noexcept;

  const std::vector<Transform>& transforms() const;
  Precision precision() const;

  // Draws what is to be done with a picture of this size (positive sides). Throws DataError when it cannot be done
  // (RandomCrop of a picture that is too small, a picture that grows beyond 2^28 pixels). The plan is valid until the
  // thread's next draw().
  const SamplePlan& draw(ImageSize picture, const SampleKey& key) const;
  static SampleShape shape_of(const SamplePlan& plan);

  // Does it: `out` has room for the shape, all of which is written. An error is the decoder's, without the name of the
  // file. The picture has to have the size that was said: else kCorrupt, or a DataError (kInvalidArgument).
  Status apply(const SamplePlan& plan, std::span<const std::uint8_t> encoded, const DecodeOptions& options,
               void* out) const;
  void apply(const SamplePlan& plan, const Image& picture, void* out) const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace lockstep::data
