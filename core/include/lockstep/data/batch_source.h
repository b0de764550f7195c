// What the loader needs to know about a type of samples: how a batch is made, and where the tensors of a batch are. The
// loader itself (DataLoaderBase) knows no type; DataLoaderOf<S, B> gives it one of the sources below.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/iterable_dataset.h"

namespace lockstep::data {

// A batch of some type, on its way from a worker to the consumer.
class AnyBatch {
 public:
  virtual ~AnyBatch() = default;
  // Calls visit(tensor) for each tensor of the batch. A tensor may be undefined. `visit` may replace tensors.
  virtual void visit(const std::function<void(torch::Tensor& tensor)>& visit) = 0;
};

template <typename B>
class BatchHolder final : public AnyBatch {
 public:
  explicit BatchHolder(B batch) : batch_(std::move(batch)) {}
  B& batch() { return batch_; }
  void visit(const std::function<void(torch::Tensor& tensor)>& visit) override { for_each_tensor(batch_, visit); }

 private:
  B batch_;
};

template <typename B>
std::unique_ptr<AnyBatch> hold(B batch) {
  return std::make_unique<BatchHolder<B>>(std::move(batch));
}

// The batches of one worker's share of an iterable dataset. Only one thread at a time may use it.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  // Returns null at the end.
  virtual std::unique_ptr<AnyBatch> next(const SampleContext& context) = 0;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The number of samples; nullopt for an iterable dataset.
  virtual std::optional<std::int64_t> size() const = 0;
  virtual bool holds_tensors() const = 0;
  // The batch of these samples, for datasets with a size. Several threads call it at once.
  virtual std::unique_ptr<AnyBatch> make(std::span<const std::int64_t> indices, const SampleContext& context) const = 0;
  // For iterable datasets. The stream begins to iterate at its first next().
  virtual std::unique_ptr<BatchStream> open(const StreamShare& share, std::int64_t batch_size,
                                            bool drop_last) const = 0;
};

// Throw DataError (kInvalidArgument).
void require_dataset(const void* dataset);
[[noreturn]] void throw_needs_collate();
// Throws an error of a share, with the exception that is being handled nested in it. `number`: of the sample in the
// share; -1: the stream could not be opened.
[[noreturn]] void throw_stream_error(const StreamShare& share, std::int64_t number);
[[noreturn]] void throw_wrong_source();

template <typename S, typename B>
using CollateFunction = std::function<B(std::vector<S>)>;

// DB: the dataset's own type of batches. If DB is B, the loader needs no collate function.
template <typename S, typename B, typename DB>
class IndexedSource final : public BatchSource {
 public:
  IndexedSource(std::shared_ptr<const DatasetOf<S, DB>> dataset, CollateFunction<S, B> collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {
    if (!std::is_same_v<B, DB> && !collate_) throw_needs_collate();
  }

  std::optional<std::int64_t> size() const override { return dataset_->size(); }
  bool holds_tensors() const override { return HoldsTensors<B>::value; }
  std::unique_ptr<AnyBatch> make(std::span<const std::int64_t> indices, const SampleContext& context) const override {
    if constexpr (std::is_same_v<B, DB>) {
      if (!collate_) return hold<B>(dataset_->get_batch(indices, context));
    }
    return hold<B>(collate_(make_samples<S>(
        indices, context, [&](std::size_t i) { return one_sample(*dataset_, indices[i], context.only(i)); })));
  }
  std::unique_ptr<BatchStream> open(const StreamShare& /*share*/, std::int64_t /*batch_size*/,
                                    bool /*drop_last*/) const override {
    throw_wrong_source();
  }

 private:
  std::shared_ptr<const DatasetOf<S, DB>> dataset_;
  CollateFunction<S, B> collate_;
};

template <typename S, typename B, typename DB>
class IterableSource final : public BatchSource {
 public:
  IterableSource(std::shared_ptr<const IterableDatasetOf<S, DB>> dataset, CollateFunction<S, B> collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {
    if (!std::is_same_v<B, BatchOf<S>> && !collate_) throw_needs_collate();
  }

  std::optional<std::int64_t> size() const override { return std::nullopt; }
  bool holds_tensors() const override { return HoldsTensors<B>::value; }
  std::unique_ptr<AnyBatch> make(std::span<const std::int64_t> /*indices*/,
                                 const SampleContext& /*context*/) const override {
    throw_wrong_source();
  }
  std::unique_ptr<BatchStream> open(const StreamShare& share, std::int64_t batch_size, bool drop_last) const override {
    return std::make_unique<Stream>(*this, share, static_cast<std::size_t>(batch_size), drop_last);
  }

 private:
  class Stream final : public BatchStream {
   public:
    Stream(const IterableSource& source, const StreamShare& share, std::size_t batch_size, bool drop_last)
        : dataset_(source.dataset_),
          collate_(source.collate_),
          share_(share),
          batch_size_(batch_size),
          drop_last_(drop_last) {}

    std::unique_ptr<AnyBatch> next(const SampleContext& context) override {
      if (!samples_ && !ended_) begin();
      while (!ended_ && waiting_.size() < batch_size_) take_one();
      if (waiting_.empty() || (drop_last_ && waiting_.size() < batch_size_)) return nullptr;
      std::vector<S> samples = std::exchange(waiting_, {});
      if constexpr (std::is_same_v<B, BatchOf<S>>) {
        if (!collate_) return hold<B>(collate(std::move(samples), context));
      }
      return hold<B>(collate_(std::move(samples)));
    }

   private:
    void begin() {
      try {
        samples_ = dataset_->iterate(share_);
        ended_ = !samples_;
      } catch (...) {
        ended_ = true;  // this worker has nothing to give in this epoch
        throw_stream_error(share_, -1);
      }
    }
    // If a batch cannot be made, the samples that wait stay for the next batch.
    void take_one() {
      note_sample(taken_);
      try {
        std::optional<S> sample = samples_();
        ++taken_;
        if (sample) {
          waiting_.push_back(*std::move(sample));
        } else {
          ended_ = true;
        }
      } catch (...) {
        throw_stream_error(share_, taken_++);
      }
    }

    std::shared_ptr<const IterableDatasetOf<S, DB>> dataset_;
    CollateFunction<S, B> collate_;
    StreamShare share_;
    std::size_t batch_size_;
    bool drop_last_;
    SampleStream<S> samples_;
    std::vector<S> waiting_;
    std::int64_t taken_ = 0;
    bool ended_ = false;
  };

  std::shared_ptr<const IterableDatasetOf<S, DB>> dataset_;
  CollateFunction<S, B> collate_;
};

template <typename S, typename B, typename DB>
std::shared_ptr<const BatchSource> make_source(std::shared_ptr<const DatasetOf<S, DB>> dataset,
                                               CollateFunction<S, B> collate) {
  require_dataset(dataset.get());
  return std::make_shared<const IndexedSource<S, B, DB>>(std::move(dataset), std::move(collate));
}
template <typename S, typename B, typename DB>
std::shared_ptr<const BatchSource> make_source(std::shared_ptr<const IterableDatasetOf<S, DB>> dataset,
                                               CollateFunction<S, B> collate) {
  require_dataset(dataset.get());
  return std::make_shared<const IterableSource<S, B, DB>>(std::move(dataset), std::move(collate));
}

// Returns the dataset, which is given by value or as a shared_ptr, as a shared_ptr to its base.
template <typename D>
auto shared_dataset(D dataset) {
  using Class = typename DatasetClass<D>::Type;
  using Base = std::conditional_t<AnyDataset<D>, DatasetOf<SampleOf<D>, BatchTypeOf<D>>,
                                  IterableDatasetOf<SampleOf<D>, BatchTypeOf<D>>>;
  if constexpr (std::is_same_v<D, Class>) {
    return std::shared_ptr<const Base>(std::make_shared<const Class>(std::move(dataset)));
  } else {
    return std::shared_ptr<const Base>(std::move(dataset));
  }
}

}  // namespace lockstep::data
