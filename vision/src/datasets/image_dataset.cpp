#include "lockstep/datasets/image_dataset.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/printable.h"
#include "data/exception_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

// The corrupt files so far. Copies of a dataset share it.
class ImageDataset::CorruptLog {
 public:
  void add(std::int64_t index, const std::string& name, const std::string& reason) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++samples_;
    const auto [place, is_new] = places_.try_emplace(index, files_.size());
    if (is_new) {
      files_.push_back({name, reason, 0});
      log::warning("left out a corrupt picture: " + reason);
    }
    ++files_[place->second].times;
  }
  std::vector<CorruptFile> files() const LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return files_;
  }
  std::int64_t samples() const LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return samples_;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::int64_t, std::size_t> places_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<CorruptFile> files_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t samples_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

// A batch that is being filled. Its memory is allocated when the shape of the first sample is known.
struct ImageDataset::Batch {
  std::int64_t capacity = 0;
  std::int64_t samples = 0;
  SampleShape shape;
  torch::Tensor data;
  torch::Tensor target;

  void begin(const SampleShape& first, const SampleContext& context) {
    shape = first;
    data = context.empty({capacity, first.channels, first.height, first.width},
                         first.is_float ? torch::kFloat : torch::kByte);
    target = context.empty({capacity}, torch::kLong);
  }
  void* place() const {
    return static_cast<std::uint8_t*>(data.data_ptr()) + static_cast<std::size_t>(samples) * shape.bytes();
  }
};

ImageDataset::ImageDataset(Compose transform, ImageOptions options)
    : transform_(std::move(transform)), options_(options), corrupt_(std::make_shared<CorruptLog>()) {}

ImageDataset::~ImageDataset() = default;

std::vector<CorruptFile> ImageDataset::corrupt_files() const {
  return corrupt_->files();
}

std::int64_t ImageDataset::corrupt_samples() const {
  return corrupt_->samples();
}

Example ImageDataset::get(std::int64_t index) const {
  Example batch = get_batch({&index, 1});
  return {batch.data[0], batch.target[0]};
}

// Adds the picture of `source`, drawn for `key`. Returns an error for a corrupt picture, and throws every other one.
Status ImageDataset::add_sample(std::int64_t source, std::int64_t key, const SampleContext& context,
                                Batch& batch) const {
  thread_local std::vector<std::uint8_t> scratch;
  const Result<Picture> picture = read_picture(source, scratch);
  if (!picture.ok()) return picture.status();
  const auto* pixels = std::get_if<Image>(&picture.value());
  const auto* bytes = std::get_if<std::span<const std::uint8_t>>(&picture.value());
  const Result<ImageSize> size = pixels != nullptr ? pixels->size() : image_size(*bytes, options_.decode);
  if (!size.ok()) return size.status().with_context(printable(name(source)));
  const SamplePlan plan = transform_.draw(size.value(), {context.seed, context.epoch, key});
  const SampleShape shape = Compose::shape_of(plan);
  if (!batch.data.defined()) batch.begin(shape, context);
  if (shape != batch.shape) {
    throw SampleError(
        source, fmt::format("{}: its sample is {} x {} x {}, the first of the batch {} x {} x {}: a batch needs "
                            "equal shapes; add Resize, CenterCrop or RandomResizedCrop to the transforms",
                            printable(name(source)), shape.channels, shape.height, shape.width, batch.shape.channels,
                            batch.shape.height, batch.shape.width));
  }
  try {
    if (pixels != nullptr) {
      transform_.apply(plan, *pixels, batch.place());
    } else {
      transform_.apply(plan, *bytes, options_.decode, batch.place());
    }
  } catch (const DataError& error) {
    if (error.code() == ErrorCode::kInvalidArgument) throw;  // the transforms are wrong, not the picture
    return Status(error.code(), error.what()).with_context(printable(name(source)));
  }
  batch.target.mutable_data_ptr<std::int64_t>()[batch.samples] = label(source);
  ++batch.samples;
  return {};
}

// Returns an error for a picture that the options leave out.
Status ImageDataset::add_or_log(std::int64_t index, std::int64_t key, const SampleContext& context,
                                Batch& batch) const {
  Status status = add_sample(index, key, context, batch);
  if (status.ok()) return status;
  if (options_.on_corrupt == OnCorrupt::kRaise) {
    throw SampleError(index, status.message() + "; set on_corrupt to replace or skip to go on without it");
  }
  corrupt_->add(index, name(index), status.message());
  return status;
}

Example ImageDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  Batch batch;
  batch.capacity = static_cast<std::int64_t>(indices.size());
  std::vector<std::int64_t> corrupt;
  std::string reason;
  for (std::size_t position = 0; position < indices.size(); ++position) {
    const std::int64_t index = indices[position];
    if (index < 0 || index >= size()) {
      throw SampleError(index, fmt::format("there are {} samples, 0 to {}", size(), size() - 1));
    }
    note_sample(context.key(position, index));
    try {
      const Status status = add_or_log(index, context.key(position, index), context, batch);
      if (status.ok()) continue;
      corrupt.push_back(index);
      context.note_left_out(position);
      reason = status.message();
    } catch (const SampleError&) {
      throw;
    } catch (...) {
      std::throw_with_nested(SampleError(index, printable(name(index)) + ": " + current_exception_text()));
    }
  }
  if (!corrupt.empty() && options_.on_corrupt == OnCorrupt::kReplace) {
    throw SamplesToReplace(std::move(corrupt), reason + "; a loader takes another sample in its place");
  }
  if (batch.samples == 0) {
    throw SkippedSample(indices.front(), fmt::format("all {} samples of the batch are corrupt", indices.size()));
  }
  if (batch.samples == batch.capacity) return {batch.data, batch.target};
  return {batch.data.narrow(0, 0, batch.samples), batch.target.narrow(0, 0, batch.samples)};
}

}  // namespace lockstep::data
