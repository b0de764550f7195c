// Communication hooks: how the gradients of one bucket become their mean over all ranks.
//
// The default is an all-reduce. A hook of your own is one method:
//
//   struct ScaledHook final : lockstep::CommHook {
//     std::function<void()> run(lockstep::GradBucket& bucket) override {
//       auto work = lockstep::all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG, .group = bucket.group()});
//       return [work, &bucket] { work->wait(); bucket.buffer().mul_(0.5); };
//     }
//   };
//   ddp.register_comm_hook(std::make_shared<ScaledHook>());
//
// Hooks that are there: compression below, and lockstep/nn/power_sgd.h. A hook object keeps state between passes: one
// object serves one wrapper. tensors() and load() save and restore this state.
#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// Gradients that are sent together. Valid until the backward pass is over.
class GradBucket {
 public:
  GradBucket(std::size_t index, bool is_last, torch::Tensor buffer, std::vector<torch::Tensor> parameters,
             std::vector<torch::Tensor> gradients, ProcessGroup group = nullptr)
      : index_(index),
        is_last_(is_last),
        buffer_(std::move(buffer)),
        parameters_(std::move(parameters)),
        gradients_(std::move(gradients)),
        group_(std::move(group)) {}

  // Position in the order in which buckets are started; the same on every rank.
  std::size_t index() const { return index_; }
  bool is_last() const { return is_last_; }
  // All gradients of the bucket, flat: [elements] of one dtype. Between gradients there may be padding (zeros).
  torch::Tensor& buffer() { return buffer_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  // Views into the buffer, shaped as the parameters.
  const std::vector<torch::Tensor>& gradients() const { return gradients_; }
  // The wrapper's own group, in which no other collective can come between; null: the world.
  const ProcessGroup& group() const { return group_; }

  // The same bucket with its gradients in another buffer of equal length, which may have another dtype.
  GradBucket with_buffer(const torch::Tensor& buffer) const;

  // For the statistic Reducer::sent(): bytes that the hook has given to collectives. The hooks of this library count
  // their bytes; a hook of your own may count too.
  void add_sent(std::size_t bytes) { sent_ += bytes; }
  std::size_t sent() const { return sent_; }

  // Call this in a hook whose result is not the mean over all ranks of the group. join may divide gradients by the
  // number of ranks that still have inputs (JoinOptions); it leaves the result of such a hook as it is.
  void keep_scale() { keeps_scale_ = true; }
  bool keeps_scale() const { return keeps_scale_; }

 private:
  std::size_t index_;
  bool is_last_;
  torch::Tensor buffer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> gradients_;
  ProcessGroup group_;
  std::size_t sent_ = 0;
  bool keeps_scale_ = false;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  // Starts the communication and returns at once. The returned function finishes it: then bucket.buffer() must hold the
  // result. Every rank starts and finishes buckets in the same order. In a join, run() is called on a rank that has no
  // more inputs too, with zeros.
  //
  // With NCCL, wait() makes only the current stream wait. There run() and the returned function run with a stream of
  // the wrapper's own as the current stream. This stream waits for the computation of the bucket's gradients, and the
  // stream of the backward pass waits for it at the end of the pass. So the work of a hook need not hold up the
  // backward pass. Such a hook may also enqueue everything in run(), and return null.
  virtual std::function<void()> run(GradBucket& bucket) = 0;
  // What kind of hook this is, with its options. Before the first pass with a hook, ranks compare this text: different
  // texts are an error. The default is the name of the type.
  virtual std::string description() const;

  // The state that this rank's hook keeps from pass to pass, by name, for a checkpoint (checkpoint::TensorFile). Not
  // copied; call it between passes. Error feedback differs between ranks: each rank saves and loads its own state. The
  // default is no state.
  virtual std::map<std::string, torch::Tensor> tensors() const { return {}; }
  // Loads a state that tensors() of a hook with the same options has returned on this rank. Call it on every rank
  // before the first pass. The state of a bucket is used once the wrapper has built a bucket of parameters with the
  // same shapes. If the shapes differ, a warning is logged and the hook starts this bucket without state. Throws a
  // ValueError for the state of another kind of hook.
  virtual void load(const std::map<std::string, torch::Tensor>& tensors);
};

struct CompressOptions {
  // Error feedback: the part of this rank's gradient that rounding took away is added to its next gradient, so that
  // small gradients are not lost. Takes the memory of the gradients once more. PyTorch has no such option for these
  // hooks.
  bool error_feedback = false;
  ProcessGroup group = nullptr;  // null: the wrapper's group
};

// Sends gradients as `dtype` (torch::kBFloat16 or torch::kHalf): half the bytes, rounded to that type. A bucket whose
// dtype is no wider is sent as it is. Half overflows at 65504; bfloat16 has the range of float and fewer digits.
// PyTorch: fp16_compress_hook, bf16_compress_hook. PyTorch's hooks round once more, after dividing by the number of
// ranks; here the backend makes the mean, and the engine rounds it once.
std::shared_ptr<CommHook> make_compress_hook(torch::Dtype dtype, const CompressOptions& options = {});

// Gives another hook the gradients as `dtype`, and converts its result back: PyTorch's fp16_compress_wrapper and
// bf16_compress_wrapper. Halves what `hook` sends; `hook` computes in `dtype` too.
std::shared_ptr<CommHook> make_compress_wrapper(torch::Dtype dtype, std::shared_ptr<CommHook> hook);

// A hook that sends nothing: every rank keeps its own gradients. For a SharedStep that takes the mean itself
// (SharedStepOptions::average_gradients), and for measuring what sending costs.
std::shared_ptr<CommHook> make_noop_hook();

}  // namespace lockstep
