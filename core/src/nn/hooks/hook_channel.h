// HookChannel: the collectives of a hook for one bucket. Counts the bytes that they get.
// BucketContent: which gradients a hook has kept something about.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "c10d/world/own_group.h"
#include "lockstep/nn/comm_hook.h"
#include "nn/device_backend.h"

namespace lockstep::nn_detail {

class HookChannel {
 public:
  // `group`: null means the bucket's group. In a join the mean over only some of the bucket's ranks stays as it is.
  HookChannel(const ProcessGroup& group, GradBucket& bucket)
      : backend_(group ? group : bucket.group(), bucket.buffer().device()), bucket_(bucket) {
    if (group && backend_.world_size() != get_world_size(bucket.group())) bucket.keep_scale();
  }

  const DeviceBackend& backend() const { return backend_; }

  c10::intrusive_ptr<c10d::Work> start_mean(const torch::Tensor& flat) const {
    bucket_.add_sent(flat.nbytes());
    return backend_.start_mean(flat);
  }
  c10::intrusive_ptr<c10d::Work> start_sum(const torch::Tensor& flat) const {
    bucket_.add_sent(flat.nbytes());
    return backend_.start_sum(flat);
  }

 private:
  DeviceBackend backend_;
  GradBucket& bucket_;
};

// A group that the program has given a hook. The hook talks in one of its own beside it, which the first call makes.
class HookGroup {
 public:
  explicit HookGroup(ProcessGroup given) : given_(std::move(given)) {}
  // Operations of an interrupted pass may be under way.
  ~HookGroup() { keep_own_group(own_); }
  HookGroup(const HookGroup&) = delete;
  HookGroup& operator=(const HookGroup&) = delete;

  // Null: the program has given none. Collective over the group.
  const ProcessGroup& get(GradBucket& bucket) {
    if (given_ && !own_) own_ = own_group(given_, bucket.buffer().device().type(), "communication hook");
    return own_;
  }

 private:
  const ProcessGroup given_;
  ProcessGroup own_;
};

// What a hook's run() returns where finishing needs nothing but work of the stream: with a backend that works by
// streams it is enqueued at once, so that the device does it while the backward pass goes on. Nothing is left to finish
// then.
inline std::function<void()> at_once_by_stream(const DeviceBackend& backend, std::function<void()> finish) {
  if (!backend.orders_by_stream()) return finish;
  finish();
  return nullptr;
}

// A hook keeps data for each bucket, such as errors. The wrapper may build its buckets again. Then the data belong to
// other gradients, even if a new bucket has as many elements. Comparing two BucketContents tells.
class BucketContent {
 public:
  BucketContent() = default;
  explicit BucketContent(GradBucket& bucket)
      : parameters_(bucket.parameters()),
        elements_(bucket.buffer().numel()),
        dtype_(bucket.buffer().scalar_type()),
        device_(bucket.buffer().device()) {}

  // For checkpoints: dtype and length of the buffer; of each parameter the number of dimensions, then sizes.
  torch::Tensor shapes() const {
    std::vector<std::int64_t> numbers{static_cast<std::int64_t>(dtype_), elements_};
    for (const torch::Tensor& parameter : parameters_) {
      numbers.push_back(parameter.dim());
      numbers.insert(numbers.end(), parameter.sizes().begin(), parameter.sizes().end());
    }
    return torch::tensor(numbers, torch::kInt64);
  }

  bool operator==(const BucketContent& other) const {
    const auto same = [](const torch::Tensor& a, const torch::Tensor& b) { return a.is_same(b); };
    return elements_ == other.elements_ && dtype_ == other.dtype_ && device_ == other.device_ &&
           std::equal(parameters_.begin(), parameters_.end(), other.parameters_.begin(), other.parameters_.end(), same);
  }

 private:
  std::vector<torch::Tensor> parameters_;
  std::int64_t elements_ = -1;  // equal to no bucket
  torch::Dtype dtype_ = torch::kFloat;
  torch::Device device_ = torch::kCPU;
};

}  // namespace lockstep::nn_detail
