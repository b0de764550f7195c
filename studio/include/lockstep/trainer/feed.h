// Batches for a Trainer, without their type: a DataLoader of any batches together with the program's step function.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/data/data_loader.h"
#include "lockstep/elastic/micro_batch_loader.h"
#include "lockstep/trainer/reports.h"

namespace lockstep::trainer_detail {

// Where batches go, and the layout of pictures there.
struct Place {
  torch::Device device;
  bool channels_last = false;
};

class Feed {
 public:
  virtual ~Feed() = default;
  virtual data::DataLoaderBase& loader() = 0;
  // Begins the loader's epoch and gets its first batch.
  virtual void begin() = 0;
  // Gets the next batch; the first call after begin() keeps the batch that begin() got. False at the end.
  virtual bool next() = 0;
  // Runs the program's step on the batch. Tensors of a data::Example go to `place` first.
  virtual StepOutput run(const Place& place) = 0;
  // Lets go of the last batch.
  virtual void end() = 0;

  // For a training that outlives its ranks (MicroBatchLoader). take(): run() gets the next batch of this micro-batch.
  // state() and load_state(): the cursor of all micro-batches.
  virtual void take(const MicroBatch& micro_batch) = 0;
  virtual data::SamplerState state() = 0;
  virtual void load_state(const data::SamplerState& state) = 0;
  // For an evaluation: from now on loader() is a loader of this share.
  virtual void take_share(std::int64_t rank, std::int64_t world_size) = 0;
};

// Moves the batch, and returns its number of samples; -1: not known.
inline std::int64_t prepare(data::Example& batch, const Place& place) {
  const auto format =
      place.channels_last && batch.data.dim() == 4 ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Preserve;
  batch.data = batch.data.to(batch.data.options().device(place.device), /*non_blocking=*/true, /*copy=*/false, format);
  batch.target = batch.target.to(place.device, /*non_blocking=*/true);
  return batch.data.dim() > 0 ? batch.data.size(0) : 1;
}
template <typename B>
std::int64_t prepare(B& /*batch*/, const Place& /*place*/) {
  return -1;
}

inline void complete(StepOutput& output, const data::Example& batch) {
  if (!output.labels.defined()) output.labels = batch.target;
}
template <typename B>
void complete(StepOutput& /*output*/, const B& /*batch*/) {}

template <typename S, typename B, typename Step>
class LoaderFeed final : public Feed {
 public:
  LoaderFeed(data::DataLoaderOf<S, B>& loader, Step& step) : loader_(loader), step_(step) {}

  data::DataLoaderBase& loader() override { return present(); }
  void begin() override {
    at_.reset();
    at_.emplace(present().begin());
    fresh_ = true;
  }
  bool next() override {
    if (!std::exchange(fresh_, false)) ++*at_;
    return !(*at_ == std::default_sentinel);
  }
  StepOutput run(const Place& place) override {
    B& batch = taken_ != nullptr ? *taken_ : **at_;
    const std::int64_t samples = prepare(batch, place);
    StepOutput output = step_(batch);
    if (output.samples < 0) output.samples = samples;
    complete(output, batch);
    return output;
  }
  void end() override { at_.reset(); }

  void take(const MicroBatch& micro_batch) override { taken_ = &shares().next(micro_batch); }
  data::SamplerState state() override { return shares().state(); }
  void load_state(const data::SamplerState& state) override {
    taken_ = nullptr;
    shares().load_state(state);
  }
  void take_share(std::int64_t rank, std::int64_t world_size) override {
    end();
    share_ = loader_.share(rank, world_size);
  }

 private:
  data::DataLoaderOf<S, B>& present() { return share_ != nullptr ? *share_ : loader_; }
  MicroBatchLoader<S, B>& shares() {
    if (!shares_) shares_.emplace(loader_);
    return *shares_;
  }

  data::DataLoaderOf<S, B>& loader_;
  std::unique_ptr<data::DataLoaderOf<S, B>> share_;  // null: loader_
  std::optional<MicroBatchLoader<S, B>> shares_;
  B* taken_ = nullptr;  // the batch of take()
  Step& step_;
  std::optional<typename data::DataLoaderOf<S, B>::Iterator> at_;
  bool fresh_ = false;
};

}  // namespace lockstep::trainer_detail
