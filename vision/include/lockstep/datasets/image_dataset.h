// A dataset of pictures: decodes and transforms them, and deals with corrupt files. Pictures come from any source, as
// files or as pixels. ImageFolder is such a source; your own is a class with four methods.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/transforms/compose.h"

namespace lockstep::data {

// What happens to pictures that cannot be read or decoded: damaged, not a picture, removed after the folder was
// indexed.
enum class OnCorrupt {
  kRaise,  // SampleError with the path
  // A loader takes the next good sample of its dataset instead: for a loader of a Subset, the next sample of the
  // subset; with a sampler, the next sample that is in the epoch. The choice is the same on all ranks and in every run.
  // Batches keep their size, and ranks stay in step. Without a loader, get and get_batch throw SamplesToReplace,
  // because only the loader knows which view of this dataset it reads.
  kReplace,
  // The bad sample is left out of its batch, which becomes smaller. If all samples of a batch are bad, get_batch throws
  // SkippedSample. A loader then takes the next good sample after the batch's first sample, so that ranks still make
  // the same number of batches; with `exact` it leaves out the batch, so that no sample counts twice.
  kSkip,
};

struct ImageOptions {
  DecodeOptions decode = {};
  OnCorrupt on_corrupt = OnCorrupt::kRaise;
};

struct CorruptFile {
  std::string name;
  std::string reason;
  std::int64_t times = 0;  // how often the sample was needed
};

// The bytes of a file, or pixels.
using Picture = std::variant<std::span<const std::uint8_t>, Image>;

class ImageDataset : public Dataset {
 public:
  ImageDataset(Compose transform, ImageOptions options);
  ~ImageDataset() override;

  // Data float [c, h, w] with ToTensor among the transforms, uint8 [c, h, w] without; target int64 []. Random
  // transforms draw with seed 0 and epoch 0.
  Example get(std::int64_t index) const override;
  // Data [n, c, h, w], target int64 [n]. Each sample is decoded and transformed directly into the batch. Throws
  // SampleError, also if the shape of a sample differs from the first sample's (then a transform that fixes the size is
  // missing).
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

  // The corrupt files so far, in the order in which they were found. Any thread may call it.
  std::vector<CorruptFile> corrupt_files() const;
  // How many samples were skipped or replaced so far. Any thread may call it.
  std::int64_t corrupt_samples() const;

  const Compose& transform() const { return transform_; }

 protected:
  // Returns one picture. Bytes are in `scratch` or in memory that stays valid. Several threads call it at once.
  virtual Result<Picture> read_picture(std::int64_t index, std::vector<std::uint8_t>& scratch) const = 0;
  virtual std::int64_t label(std::int64_t index) const = 0;
  // What messages call the sample.
  virtual std::string name(std::int64_t index) const = 0;

 private:
  class CorruptLog;
  struct Batch;
  Status add_sample(std::int64_t source, std::int64_t key, const SampleContext& context, Batch& batch) const;
  Status add_or_log(std::int64_t index, std::int64_t key, const SampleContext& context, Batch& batch) const;

  Compose transform_;
  ImageOptions options_;
  std::shared_ptr<CorruptLog> corrupt_;
};

}  // namespace lockstep::data
