// One bucket on its way from gradients to their mean.
#include <utility>

#include "backward_pass.h"
#include "nn/same_memory.h"

namespace lockstep::nn_detail {

void BucketReduction::start(ReducerState& state, std::size_t index, const std::vector<std::size_t>& to_copy) {
  const Bucket& bucket = state.buckets[index];
  started_ = true;
  state.buckets.seal(index);
  state.buckets.copy(to_copy);
  hook_ = state.hook;
  const CallLabel label(bucket.label);
  if (!hook_) {
    work_ = state.backend.start_mean(bucket.buffer);
    return;
  }
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> gradients;
  for (const std::size_t member : bucket.members) {
    parameters.push_back(state.parameters[member].tensor);
    gradients.push_back(state.buckets.view(member));
  }
  for_hook_.emplace(index, index + 1 == state.buckets.size(), bucket.buffer, std::move(parameters),
                    std::move(gradients), state.group);
  const GradientPlacement::Pause pause;  // what a hook allocates is no gradient
  if (!state.hook_stream) {
    finish_ = hook_->run(*for_hook_);
    return;
  }
  keep_for_stream(bucket.buffer, state.hook_stream->stream());
  finish_ = state.hook_stream->run([&] { return hook_->run(*for_hook_); });
}

void BucketReduction::wait(const ReducerState& state) {
  if (work_) std::exchange(work_, nullptr)->wait();
  if (!for_hook_) return;
  const std::function<void()> finish = std::exchange(finish_, nullptr);
  if (!state.hook_stream) {
    if (finish) finish();
    return;
  }
  if (finish) state.hook_stream->run(finish);
  state.hook_stream->join();
}

std::size_t BucketReduction::take_result(const ReducerState& state, std::size_t index) {
  const torch::Tensor& buffer = state.buckets[index].buffer;
  std::size_t sent = buffer.nbytes();
  bool is_mean = true;
  if (for_hook_) {
    copy_result(state, buffer);
    sent = for_hook_->sent();
    is_mean = !for_hook_->keeps_scale();
    for_hook_.reset();
  }
  const double scale = state.gradient_scale;
  const torch::NoGradGuard no_grad;
  if (scale != 1 && is_mean) buffer.mul_(scale);
  return sent;
}

// A hook may put its result into another tensor, or into a lazily conjugated view of the bucket.
void BucketReduction::copy_result(const ReducerState& state, const torch::Tensor& buffer) {
  const torch::Tensor result = for_hook_->buffer().flatten();
  TORCH_CHECK_VALUE(result.numel() == buffer.numel(), "rank ", state.backend.rank(), ": the communication hook left ",
                    result.numel(), " elements in the buffer of bucket ", for_hook_->index(), ", expected ",
                    buffer.numel());
  if (same_memory(result, buffer)) return;
  if (state.hook_stream) keep_for_stream(result, current_stream(state.backend.device()));
  const torch::NoGradGuard no_grad;
  buffer.copy_(result.is_alias_of(buffer) ? result.clone() : result);
}

}  // namespace lockstep::nn_detail
