#include "lockstep/nn/power_sgd.h"

#include <algorithm>
#include <map>
#include <optional>

#include "hook_channel.h"
#include "hook_state.h"
#include "low_rank.h"

namespace lockstep {
namespace {

using nn_detail::HookChannel;
using nn_detail::LowRank;
using Work = c10::intrusive_ptr<c10d::Work>;

// The gradient's memory as a matrix [n, m]: one row for each index of its outermost dimension. Nothing for gradients
// that are no matrix.
std::optional<torch::Tensor> as_matrix(const torch::Tensor& gradient) {
  if (gradient.dim() == 0 || gradient.numel() == 0 || !gradient.is_floating_point()) return std::nullopt;
  std::int64_t outermost = 0;
  for (std::int64_t dim = 1; dim < gradient.dim(); ++dim) {
    if (gradient.size(dim) > 1 && gradient.stride(dim) > gradient.stride(outermost)) outermost = dim;
  }
  const std::int64_t rows = gradient.size(gradient.is_contiguous() ? 0 : outermost);
  const std::int64_t columns = gradient.numel() / rows;
  return gradient.as_strided({rows, columns}, {columns, 1});
}

torch::Tensor memory_of(const torch::Tensor& gradient) {
  return gradient.as_strided({gradient.numel()}, {1});
}

// Matrices of one shape that are computed together, and their factors.
struct Factors {
  torch::Tensor matrix;                  // [count, n, m]
  std::vector<torch::Tensor> originals;  // [n, m] each; empty when `matrix` is the gradient's own memory
  torch::Tensor p;                       // [count, n, r]
  torch::Tensor q;                       // [count, m, r]
};

// What a bucket keeps from pass to pass.
struct Memory {
  nn_detail::BucketContent content;
  torch::Tensor error;
  torch::Tensor p;
  torch::Tensor q;
  torch::Tensor loaded_q;
};

class PowerSgdHook final : public CommHook {
 public:
  explicit PowerSgdHook(PowerSgdOptions options) : low_rank_(std::move(options)) {}

  std::function<void()> run(GradBucket& bucket) override {
    const HookChannel channel(group_.get(bucket), bucket);
    if (bucket.is_last()) nn_detail::forget_after(bucket.index(), memories_);
    if (!low_rank_.compresses()) {
      low_rank_.end_bucket(bucket);
      return [work = channel.start_mean(bucket.buffer())] { work->wait(); };
    }
    const torch::NoGradGuard no_grad;
    auto pass = std::make_shared<Pass>(Pass{channel, bucket, memory_of_bucket(bucket)});
    if (options().use_error_feedback) {
      bucket.buffer().add_(pass->memory.error);
      pass->input = bucket.buffer().clone();
    }
    split(*pass);
    if (pass->uncompressed.defined()) pass->uncompressed_work = channel.start_mean(pass->uncompressed);
    if (!pass->factors.empty()) pass->p_work = channel.start_sum(pass->memory.p);
    return [this, pass] {
      const torch::NoGradGuard guard;
      finish(*pass);
    };
  }

  std::string description() const override { return low_rank_.description(); }

  nn_detail::NamedTensors tensors() const override {
    nn_detail::NamedTensors all = low_rank_.counters();
    for (const auto& [index, memory] : memories_) {
      nn_detail::add_of_bucket(all, index, nn_detail::kShapes, memory.content.shapes());
      nn_detail::add_of_bucket(all, index, "error", memory.error);
      nn_detail::add_of_bucket(all, index, "q", memory.q);
    }
    if (memories_.empty()) waiting_.add_to(all);
    return all;
  }

  void load(const nn_detail::NamedTensors& tensors) override {
    nn_detail::check_names(tensors, {"iteration", "seeds_drawn", nn_detail::kShapes, "error", "q"});
    low_rank_.load_counters(tensors);
    memories_.clear();
    waiting_.load(tensors);
  }

 private:
  struct Pass {
    HookChannel channel;
    GradBucket& bucket;
    Memory& memory;
    torch::Tensor input = {};  // with the error of the last pass
    std::vector<torch::Tensor> small = {};
    torch::Tensor uncompressed = {};  // the gradients of `small`, one after the other
    std::vector<Factors> factors = {};
    Work uncompressed_work = {};
    Work p_work = {};
  };

  const PowerSgdOptions& options() const { return low_rank_.options(); }

  Memory& memory_of_bucket(GradBucket& bucket) {
    Memory& memory = memories_[bucket.index()];
    if (nn_detail::BucketContent content(bucket); memory.content != content) {
      nn_detail::forget_after(bucket.index(), memories_);
      memory = {std::move(content), {}, {}, {}, {}};
      if (options().use_error_feedback) memory.error = torch::zeros_like(bucket.buffer());
      const nn_detail::NamedTensors loaded = waiting_.take(bucket);
      if (loaded.contains("error") && memory.error.defined()) memory.error.copy_(loaded.at("error"));
      if (loaded.contains("q")) memory.loaded_q = loaded.at("q");
    }
    return memory;
  }

  bool is_worth_it(const torch::Tensor& matrix, std::int64_t rank) const {
    const auto compressed = static_cast<double>((matrix.size(0) + matrix.size(1)) * rank);
    return compressed * options().min_compression_rate < static_cast<double>(matrix.numel());
  }

  std::int64_t rank_of(std::int64_t rows, std::int64_t columns) const {
    return std::min({rows, columns, options().matrix_approximation_rank});
  }

  // Divides the gradients into those that are sent as they are and those that are compressed; computes P of these.
  void split(Pass& pass) {
    std::vector<std::vector<torch::Tensor>> by_shape;  // in the order of the first of each shape
    for (const torch::Tensor& gradient : pass.bucket.gradients()) {
      const std::optional<torch::Tensor> matrix = as_matrix(gradient);
      if (!matrix || !is_worth_it(*matrix, rank_of(matrix->size(0), matrix->size(1)))) {
        pass.small.push_back(memory_of(gradient));
        continue;
      }
      const auto same = std::find_if(by_shape.begin(), by_shape.end(),
                                     [&](const auto& others) { return others[0].sizes() == matrix->sizes(); });
      if (same == by_shape.end()) {
        by_shape.push_back({*matrix});
      } else {
        same->push_back(*matrix);
      }
    }
    if (!pass.small.empty()) pass.uncompressed = torch::cat(pass.small);
    for (const auto& matrices : by_shape) {
      if (options().batch_tensors_with_same_shape && matrices.size() > 1) {
        pass.factors.push_back({torch::stack(matrices), matrices, {}, {}});
      } else {
        for (const torch::Tensor& matrix : matrices) pass.factors.push_back({matrix.unsqueeze(0), {}, {}, {}});
      }
    }
    if (pass.factors.empty()) return;
    prepare_q(pass);
    for (const Factors& factors : pass.factors) {
      torch::Tensor p = factors.p;
      torch::bmm_out(p, factors.matrix, factors.q);
    }
  }

  // Gives the factors their places in flat memory, and Q orthonormal columns.
  void prepare_q(Pass& pass) {
    std::int64_t p_size = 0;
    std::int64_t q_size = 0;
    for (const Factors& factors : pass.factors) {
      const std::int64_t rank = rank_of(factors.matrix.size(1), factors.matrix.size(2));
      p_size += factors.matrix.size(0) * factors.matrix.size(1) * rank;
      q_size += factors.matrix.size(0) * factors.matrix.size(2) * rank;
    }
    const torch::Tensor loaded = std::exchange(pass.memory.loaded_q, torch::Tensor());
    const bool continues = loaded.defined() && loaded.numel() == q_size;
    std::optional<at::Generator> generator = low_rank_.generator_of_pass(pass.memory.q.defined() || continues);
    if (!pass.memory.q.defined()) {
      pass.memory.p = pass.channel.backend().allocate(p_size, pass.bucket.buffer().scalar_type());
      pass.memory.q = pass.channel.backend().allocate(q_size, pass.bucket.buffer().scalar_type());
      if (continues) pass.memory.q.copy_(loaded);
    }
    std::int64_t p_at = 0;
    std::int64_t q_at = 0;
    for (Factors& factors : pass.factors) {
      const std::int64_t count = factors.matrix.size(0);
      const std::int64_t rank = rank_of(factors.matrix.size(1), factors.matrix.size(2));
      const auto take = [&](const torch::Tensor& flat, std::int64_t& at, std::int64_t rows) {
        const std::int64_t size = count * rows * rank;
        at += size;
        return flat.narrow(0, at - size, size).view({count, rows, rank});
      };
      factors.p = take(pass.memory.p, p_at, factors.matrix.size(1));
      factors.q = take(pass.memory.q, q_at, factors.matrix.size(2));
      low_rank_.prepare_q(factors.q, generator);
    }
  }

  void finish(Pass& pass) {
    if (pass.uncompressed_work) {
      pass.uncompressed_work->wait();
      std::int64_t at = 0;
      for (const torch::Tensor& gradient : pass.small) {
        gradient.copy_(pass.uncompressed.narrow(0, at, gradient.numel()));
        at += gradient.numel();
      }
    }
    if (pass.p_work) decompress(pass);
    if (options().use_error_feedback) {
      // A gradient that was not finite must not come back in every later pass.
      torch::sub_out(pass.memory.error, pass.input, pass.bucket.buffer()).nan_to_num_(0, 0, 0);
    }
    low_rank_.end_bucket(pass.bucket);
  }

  void decompress(Pass& pass) {
    pass.p_work->wait();
    for (Factors& factors : pass.factors) {
      nn_detail::orthogonalize(factors.p, options().orthogonalization_epsilon);
      torch::bmm_out(factors.q, factors.matrix.transpose(1, 2), factors.p);
    }
    pass.channel.start_sum(pass.memory.q)->wait();
    pass.memory.q.div_(pass.channel.backend().world_size());
    for (Factors& factors : pass.factors) {
      torch::bmm_out(factors.matrix, factors.p, factors.q.transpose(1, 2));
      for (std::size_t i = 0; i < factors.originals.size(); ++i) {
        factors.originals[i].copy_(factors.matrix[static_cast<std::int64_t>(i)]);
      }
    }
    // Q is the same on every rank, so all of them start again with a new one when it is not finite.
    if (!pass.memory.q.isfinite().all().item<bool>()) pass.memory.q = torch::Tensor();
  }

  LowRank low_rank_;
  nn_detail::HookGroup group_{options().group};
  nn_detail::WaitingBuckets waiting_;
  std::map<std::size_t, Memory> memories_;  // by bucket; references to its entries stay valid
};

}  // namespace

std::shared_ptr<CommHook> make_power_sgd_hook(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace lockstep
