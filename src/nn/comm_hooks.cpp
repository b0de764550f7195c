#include <map>

#include "backend.h"
#include "lockstep/nn/comm_hook.h"

namespace lockstep {
namespace {

class CompressHook final : public CommHook {
 public:
  CompressHook(torch::Dtype dtype, ProcessGroup group) : dtype_(dtype), group_(std::move(group)) {}

  std::function<void()> run(GradBucket& bucket) override {
    const nn_detail::Backend backend(group_, bucket.buffer().device());
    const torch::Dtype from = bucket.buffer().scalar_type();
    if (!c10::isFloatingType(from) || c10::elementSize(from) <= c10::elementSize(dtype_)) {
      return [work = backend.start_mean(bucket.buffer())] { work->wait(); };  // nothing to gain
    }
    torch::Tensor& compressed = compressed_[bucket.index()];
    if (!compressed.defined() || compressed.numel() != bucket.buffer().numel()) {
      compressed = backend.allocate(bucket.buffer().numel(), dtype_);
    }
    compressed.copy_(bucket.buffer());
    return [work = backend.start_mean(compressed), compressed, &bucket] {
      work->wait();
      bucket.buffer().copy_(compressed);
    };
  }

 private:
  torch::Dtype dtype_;
  ProcessGroup group_;
  std::map<std::size_t, torch::Tensor> compressed_;  // by bucket; kept so that later passes do not allocate
};

class NoopHook final : public CommHook {
 public:
  std::function<void()> run(GradBucket&) override {
    return [] {};
  }
};

}  // namespace

std::shared_ptr<CommHook> make_compress_hook(torch::Dtype dtype, const ProcessGroup& group) {
  TORCH_CHECK_VALUE(dtype == torch::kHalf || dtype == torch::kBFloat16,
                    "make_compress_hook: expected torch::kHalf or torch::kBFloat16, got ", dtype);
  return std::make_shared<CompressHook>(dtype, group);
}

std::shared_ptr<CommHook> make_noop_hook() {
  return std::make_shared<NoopHook>();
}

}  // namespace lockstep
