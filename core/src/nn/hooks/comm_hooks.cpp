#include <c10/util/Type.h>
#include <fmt/format.h>

#include <map>
#include <typeinfo>

#include "hook_channel.h"
#include "hook_state.h"
#include "lockstep/nn/comm_hook.h"

namespace lockstep {
namespace {

using nn_detail::HookChannel;

void check_dtype(const char* function, torch::Dtype dtype) {
  TORCH_CHECK_VALUE(dtype == torch::kHalf || dtype == torch::kBFloat16, function,
                    ": expected torch::kHalf or torch::kBFloat16, got ", dtype);
}

bool is_wider(torch::Dtype dtype, torch::Dtype than) {
  return c10::isFloatingType(dtype) && c10::elementSize(dtype) > c10::elementSize(than);
}

class CompressHook final : public CommHook {
 public:
  CompressHook(torch::Dtype dtype, CompressOptions options) : dtype_(dtype), options_(std::move(options)) {}

  std::function<void()> run(GradBucket& bucket) override {
    const HookChannel channel(group_.get(bucket), bucket);
    if (bucket.is_last()) nn_detail::forget_after(bucket.index(), memory_);
    if (!is_wider(bucket.buffer().scalar_type(), dtype_)) {
      return [work = channel.start_mean(bucket.buffer())] { work->wait(); };  // nothing to gain
    }
    const torch::NoGradGuard no_grad;
    const torch::Tensor compressed = compress(bucket, channel.backend());
    return nn_detail::at_once_by_stream(channel.backend(),
                                        [work = channel.start_mean(compressed), compressed, &bucket] {
                                          work->wait();
                                          const torch::NoGradGuard guard;
                                          bucket.buffer().copy_(compressed);
                                        });
  }

  std::string description() const override {
    return fmt::format("compression to {}{}", c10::toString(dtype_),
                       options_.error_feedback ? " with error feedback" : "");
  }

  nn_detail::NamedTensors tensors() const override {
    nn_detail::NamedTensors all;
    for (const auto& [index, memory] : memory_) {
      if (!memory.error.defined()) continue;
      nn_detail::add_of_bucket(all, index, nn_detail::kShapes, memory.content.shapes());
      nn_detail::add_of_bucket(all, index, "error", memory.error);
    }
    if (memory_.empty()) waiting_.add_to(all);
    return all;
  }

  void load(const nn_detail::NamedTensors& tensors) override {
    if (!options_.error_feedback) return CommHook::load(tensors);
    nn_detail::check_names(tensors, {nn_detail::kShapes, "error"});
    memory_.clear();
    waiting_.load(tensors);
  }

 private:
  struct Memory {  // of one bucket; kept so that later passes do not allocate
    nn_detail::BucketContent content;
    torch::Tensor compressed;
    torch::Tensor error;
  };

  const torch::Tensor& compress(GradBucket& bucket, const nn_detail::DeviceBackend& backend) {
    const torch::Tensor& buffer = bucket.buffer();
    Memory& memory = memory_[bucket.index()];
    if (nn_detail::BucketContent content(bucket); memory.content != content) {
      nn_detail::forget_after(bucket.index(), memory_);
      memory = {std::move(content), backend.allocate(buffer.numel(), dtype_), {}};
      if (options_.error_feedback) {
        memory.error = torch::zeros_like(buffer);
        const nn_detail::NamedTensors loaded = waiting_.take(bucket);
        if (loaded.contains("error")) memory.error.copy_(loaded.at("error"));
      }
    }
    if (options_.error_feedback) buffer.add_(memory.error);
    memory.compressed.copy_(buffer);
    if (options_.error_feedback) {
      // An overflow must not come back in every later pass.
      torch::sub_out(memory.error, buffer, memory.compressed).nan_to_num_(0, 0, 0);
    }
    return memory.compressed;
  }

  const torch::Dtype dtype_;
  const CompressOptions options_;
  nn_detail::HookGroup group_{options_.group};
  std::map<std::size_t, Memory> memory_;  // by bucket
  nn_detail::WaitingBuckets waiting_;
};

class CompressWrapper final : public CommHook {
 public:
  CompressWrapper(torch::Dtype dtype, std::shared_ptr<CommHook> hook) : dtype_(dtype), hook_(std::move(hook)) {}

  std::function<void()> run(GradBucket& bucket) override {
    if (!is_wider(bucket.buffer().scalar_type(), dtype_)) return hook_->run(bucket);
    const torch::NoGradGuard no_grad;
    const HookChannel channel(nullptr, bucket);
    const torch::Tensor compressed = channel.backend().allocate(bucket.buffer().numel(), dtype_);
    compressed.copy_(bucket.buffer());
    const auto inner = std::make_shared<GradBucket>(bucket.with_buffer(compressed));
    std::function<void()> finish = hook_->run(*inner);
    const bool is_done = !finish;
    const auto convert = [finish = std::move(finish), inner, &bucket] {
      if (finish) finish();
      bucket.add_sent(inner->sent());
      if (inner->keeps_scale()) bucket.keep_scale();
      const torch::NoGradGuard no_grad;
      bucket.buffer().copy_(inner->buffer().flatten());
    };
    if (is_done) return nn_detail::at_once_by_stream(channel.backend(), convert);
    return convert;
  }

  std::string description() const override {
    return fmt::format("{}, in {}", hook_->description(), c10::toString(dtype_));
  }

  nn_detail::NamedTensors tensors() const override { return hook_->tensors(); }
  void load(const nn_detail::NamedTensors& tensors) override { hook_->load(tensors); }

 private:
  const torch::Dtype dtype_;
  const std::shared_ptr<CommHook> hook_;
};

class NoopHook final : public CommHook {
 public:
  std::function<void()> run(GradBucket& bucket) override {
    bucket.keep_scale();
    return [] {};
  }
  std::string description() const override { return "no-op"; }
};

}  // namespace

GradBucket GradBucket::with_buffer(const torch::Tensor& buffer) const {
  TORCH_CHECK_VALUE(buffer.dim() == 1 && buffer.numel() == buffer_.numel(), "with_buffer: expected [", buffer_.numel(),
                    "] elements, got ", buffer.sizes());
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& gradient : gradients_) {
    const std::int64_t offset = gradient.storage_offset() - buffer_.storage_offset() + buffer.storage_offset();
    gradients.push_back(buffer.as_strided(gradient.sizes(), gradient.strides(), offset));
  }
  return {index_, is_last_, buffer, parameters_, std::move(gradients), group_};
}

std::string CommHook::description() const {
  return c10::demangle(typeid(*this).name());
}

void CommHook::load(const std::map<std::string, torch::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.empty(), "the communication hook '", description(),
                    "' keeps nothing, but its saved state has '", tensors.begin()->first, "'");
}

std::shared_ptr<CommHook> make_compress_hook(torch::Dtype dtype, const CompressOptions& options) {
  check_dtype("make_compress_hook", dtype);
  return std::make_shared<CompressHook>(dtype, options);
}

std::shared_ptr<CommHook> make_compress_wrapper(torch::Dtype dtype, std::shared_ptr<CommHook> hook) {
  check_dtype("make_compress_wrapper", dtype);
  TORCH_CHECK_VALUE(hook, "make_compress_wrapper: expected a hook to wrap, got null; use make_compress_hook alone");
  return std::make_shared<CompressWrapper>(dtype, std::move(hook));
}

std::shared_ptr<CommHook> make_noop_hook() {
  return std::make_shared<NoopHook>();
}

}  // namespace lockstep
