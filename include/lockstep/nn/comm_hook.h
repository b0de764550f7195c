// Communication hooks: how the gradients of one bucket become their mean over all ranks.
//
// The default is an all-reduce. A hook of your own is one method:
//
//   struct ScaledHook final : lockstep::CommHook {
//     std::function<void()> run(lockstep::GradBucket& bucket) override {
//       auto work = lockstep::all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
//       return [work, &bucket] { work->wait(); bucket.buffer().mul_(0.5); };
//     }
//   };
//   ddp.register_comm_hook(std::make_shared<ScaledHook>());
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// Gradients that are sent together. Valid until the backward pass is over.
class GradBucket {
 public:
  GradBucket(std::size_t index, bool is_last, torch::Tensor buffer, std::vector<torch::Tensor> parameters,
             std::vector<torch::Tensor> gradients)
      : index_(index),
        is_last_(is_last),
        buffer_(std::move(buffer)),
        parameters_(std::move(parameters)),
        gradients_(std::move(gradients)) {}

  // Position in the order in which buckets are started; the same on every rank.
  std::size_t index() const { return index_; }
  bool is_last() const { return is_last_; }
  // All gradients of the bucket, flat: [elements] of one dtype. Between gradients there may be padding (zeros).
  torch::Tensor& buffer() { return buffer_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  // Views into the buffer, shaped as the parameters.
  const std::vector<torch::Tensor>& gradients() const { return gradients_; }

 private:
  std::size_t index_;
  bool is_last_;
  torch::Tensor buffer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> gradients_;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  // Starts the communication and returns at once. The returned function finishes it: then bucket.buffer() must hold the
  // result. Every rank starts and finishes buckets in the same order.
  virtual std::function<void()> run(GradBucket& bucket) = 0;
};

// Sends gradients as `dtype` (torch::kBFloat16 or torch::kHalf): half the bytes, rounded to that type.
std::shared_ptr<CommHook> make_compress_hook(torch::Dtype dtype, const ProcessGroup& group = nullptr);
// Every rank keeps its own gradients: for measuring the cost of communication.
std::shared_ptr<CommHook> make_noop_hook();

}  // namespace lockstep
