#include "lockstep/nn/parameter_averaging.h"

#include <fmt/format.h>

#include <unordered_set>

#include "nn/flat_mean.h"
#include "nn/hooks/hook_channel.h"
#include "nn/hooks/hook_state.h"

namespace lockstep {
namespace {

class PostLocalSgdHook final : public CommHook {
 public:
  explicit PostLocalSgdHook(PostLocalSgdOptions options) : options_(std::move(options)) {
    TORCH_CHECK_VALUE(options_.start_local_sgd_iter >= 0,
                      "make_post_local_sgd_hook: start_local_sgd_iter must not be negative, got ",
                      options_.start_local_sgd_iter);
  }

  std::function<void()> run(GradBucket& bucket) override {
    const bool all_ranks = iteration_ < options_.start_local_sgd_iter;
    if (bucket.is_last()) ++iteration_;
    if (!all_ranks) bucket.keep_scale();
    const ProcessGroup& group = group_.get(bucket);
    const ProcessGroup& subgroup = subgroup_.get(bucket);  // made in the first pass too
    if (!all_ranks && !subgroup) return nullptr;
    const nn_detail::HookChannel channel(all_ranks ? group : subgroup, bucket);
    return [work = channel.start_mean(bucket.buffer())] { work->wait(); };
  }

  std::string description() const override {
    return fmt::format("post-local SGD(start_local_sgd_iter {}, {})", options_.start_local_sgd_iter,
                       options_.subgroup ? "with a subgroup" : "no subgroup") +
           nn_detail::continued(loaded_iteration_);
  }

  nn_detail::NamedTensors tensors() const override { return {{"iteration", nn_detail::counter(iteration_)}}; }
  void load(const nn_detail::NamedTensors& tensors) override {
    nn_detail::check_names(tensors, {"iteration"});
    loaded_iteration_ = iteration_ = nn_detail::read_counter(tensors, "iteration");
  }

 private:
  const PostLocalSgdOptions options_;
  nn_detail::HookGroup group_{options_.group};
  nn_detail::HookGroup subgroup_{options_.subgroup};
  std::int64_t iteration_ = 0;
  std::int64_t loaded_iteration_ = 0;
};

}  // namespace

void average_parameters(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group) {
  std::vector<torch::Tensor> distinct;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) distinct.push_back(parameter);
  }
  nn_detail::flat_mean(distinct, group);
}

PeriodicModelAverager::PeriodicModelAverager(const PeriodicModelAveragerOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options_.period >= 1, "PeriodicModelAverager: period must be at least 1, got ", options_.period);
  TORCH_CHECK_VALUE(options_.warmup_steps >= 0, "PeriodicModelAverager: warmup_steps must not be negative, got ",
                    options_.warmup_steps);
}

bool PeriodicModelAverager::average_parameters(const std::vector<torch::Tensor>& parameters) {
  const std::int64_t step = step_++ - options_.warmup_steps;
  if (step < 0 || step % options_.period != 0) return false;
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  lockstep::average_parameters(trained, options_.group);
  return true;
}

std::shared_ptr<CommHook> make_post_local_sgd_hook(const PostLocalSgdOptions& options) {
  return std::make_shared<PostLocalSgdHook>(options);
}

}  // namespace lockstep
