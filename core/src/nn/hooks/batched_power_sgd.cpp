#include <cmath>
#include <map>

#include "hook_channel.h"
#include "hook_state.h"
#include "lockstep/nn/power_sgd.h"
#include "low_rank.h"

namespace lockstep {
namespace {

using nn_detail::HookChannel;
using nn_detail::LowRank;

// Names of the saved state. Not those of PowerSGD per matrix, whose tensors have other shapes.
constexpr const char* kError = "square_error";
constexpr const char* kQ = "square_q";

// The side of the smallest square with so many cells.
std::int64_t side_of(std::int64_t cells) {
  auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(cells)));
  while (side * side < cells) ++side;
  return side;
}

class BatchedPowerSgdHook final : public CommHook {
 public:
  explicit BatchedPowerSgdHook(PowerSgdOptions options) : low_rank_(std::move(options)) {}

  std::function<void()> run(GradBucket& bucket) override {
    const HookChannel channel(group_.get(bucket), bucket);
    if (bucket.is_last()) nn_detail::forget_after(bucket.index(), memories_);
    if (!low_rank_.compresses() || !bucket.buffer().is_floating_point()) {
      low_rank_.end_bucket(bucket);
      return [work = channel.start_mean(bucket.buffer())] { work->wait(); };
    }
    const torch::NoGradGuard no_grad;
    Memory& memory = memory_of_bucket(bucket, channel.backend());
    memory.pack(bucket);
    if (options().use_error_feedback) {
      memory.square.add_(memory.error);
      memory.error.copy_(memory.square);  // holds the input until finish
    }
    std::optional<at::Generator> generator = low_rank_.generator_of_pass(memory.has_q);
    low_rank_.prepare_q(memory.q, generator);
    memory.has_q = true;
    torch::bmm_out(memory.p, memory.square, memory.q);
    return [this, channel, work = channel.start_sum(memory.p), &memory, &bucket] {
      work->wait();
      const torch::NoGradGuard guard;
      finish(channel, memory, bucket);
    };
  }

  std::string description() const override { return low_rank_.description("batched PowerSGD"); }

  nn_detail::NamedTensors tensors() const override {
    nn_detail::NamedTensors all = low_rank_.counters();
    for (const auto& [index, memory] : memories_) {
      nn_detail::add_of_bucket(all, index, nn_detail::kShapes, memory.content.shapes());
      nn_detail::add_of_bucket(all, index, kError, memory.error);
      if (memory.has_q) nn_detail::add_of_bucket(all, index, kQ, memory.q);
    }
    if (memories_.empty()) waiting_.add_to(all);
    return all;
  }

  void load(const nn_detail::NamedTensors& tensors) override {
    nn_detail::check_names(tensors, {"iteration", "seeds_drawn", nn_detail::kShapes, kError, kQ});
    low_rank_.load_counters(tensors);
    memories_.clear();
    waiting_.load(tensors);
  }

 private:
  // What a bucket keeps from pass to pass.
  struct Memory {
    nn_detail::BucketContent content;
    torch::Tensor square;  // [1, side, side]: the gradients one after the other, then zeros
    torch::Tensor error;   // the same
    torch::Tensor p;       // [1, side, r]
    torch::Tensor q;       // [1, side, r]
    bool has_q = false;

    void pack(const GradBucket& bucket) {
      std::int64_t at = 0;
      each_part(bucket, at, [](const torch::Tensor& part, const torch::Tensor& gradient) { part.copy_(gradient); });
      square.flatten().narrow(0, at, square.numel() - at).zero_();
    }
    void unpack(const GradBucket& bucket) {
      std::int64_t at = 0;
      each_part(bucket, at, [](const torch::Tensor& part, const torch::Tensor& gradient) { gradient.copy_(part); });
    }
    template <typename Copy>
    void each_part(const GradBucket& bucket, std::int64_t& at, Copy copy) {
      const torch::Tensor flat = square.flatten();  // a view
      for (const torch::Tensor& gradient : bucket.gradients()) {
        copy(flat.narrow(0, at, gradient.numel()), gradient.as_strided({gradient.numel()}, {1}));
        at += gradient.numel();
      }
    }
  };

  const PowerSgdOptions& options() const { return low_rank_.options(); }

  Memory& memory_of_bucket(GradBucket& bucket, const nn_detail::DeviceBackend& backend) {
    Memory& memory = memories_[bucket.index()];
    nn_detail::BucketContent content(bucket);
    if (memory.content == content) return memory;
    nn_detail::forget_after(bucket.index(), memories_);
    std::int64_t cells = 0;
    for (const torch::Tensor& gradient : bucket.gradients()) cells += gradient.numel();
    const std::int64_t side = side_of(cells);
    const std::int64_t rank = std::min(side, options().matrix_approximation_rank);
    const torch::Dtype dtype = bucket.buffer().scalar_type();
    memory = {};
    memory.content = std::move(content);
    memory.square = torch::zeros({1, side, side}, bucket.buffer().options());
    if (options().use_error_feedback) memory.error = torch::zeros_like(memory.square);
    memory.p = backend.allocate(side * rank, dtype).view({1, side, rank});
    memory.q = backend.allocate(side * rank, dtype).view({1, side, rank});
    const nn_detail::NamedTensors loaded = waiting_.take(bucket);
    if (loaded.contains(kError) && memory.error.defined()) memory.error.copy_(loaded.at(kError));
    if (loaded.contains(kQ) && loaded.at(kQ).sizes() == memory.q.sizes()) {
      memory.q.copy_(loaded.at(kQ));
      memory.has_q = true;
    }
    return memory;
  }

  void finish(const HookChannel& channel, Memory& memory, GradBucket& bucket) {
    nn_detail::orthogonalize(memory.p, options().orthogonalization_epsilon);
    torch::bmm_out(memory.q, memory.square.transpose(1, 2), memory.p);
    channel.start_sum(memory.q)->wait();
    memory.q.div_(channel.backend().world_size());
    torch::bmm_out(memory.square, memory.p, memory.q.transpose(1, 2));
    // Gradients that were not finite must not come back in every later pass. Q is the same on every rank.
    if (options().use_error_feedback) memory.error.sub_(memory.square).nan_to_num_(0, 0, 0);
    if (!memory.q.isfinite().all().item<bool>()) memory.has_q = false;
    memory.unpack(bucket);
    low_rank_.end_bucket(bucket);
  }

  LowRank low_rank_;
  nn_detail::HookGroup group_{options().group};
  nn_detail::WaitingBuckets waiting_;
  std::map<std::size_t, Memory> memories_;  // by bucket; references to its entries stay valid
};

}  // namespace

std::shared_ptr<CommHook> make_batched_power_sgd_hook(const PowerSgdOptions& options) {
  return std::make_shared<BatchedPowerSgdHook>(options);
}

}  // namespace lockstep
