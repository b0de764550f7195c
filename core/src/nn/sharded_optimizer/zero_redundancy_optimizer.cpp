#include "lockstep/nn/zero_redundancy_optimizer.h"

#include <torch/serialize.h>

#include "state_copies.h"
#include "zero_redundancy_optimizer_impl.h"

namespace lockstep {

ShardedOptimizer::ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, OptimizerFactory factory,
                                   const ZeroRedundancyOptions& options)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)) {
  // Every check that this rank alone can fail comes before the ranks compare their parameters.
  Impl::agree(options.process_group, [&] {
    for (const auto& group : groups) add_param_group(group);
    return Impl::own_lines(param_groups_, factory, options);
  });
  impl_ = std::make_unique<Impl>(*this, std::move(factory), options);
}

ShardedOptimizer::~ShardedOptimizer() = default;

nn_detail::SurvivingStep* ShardedOptimizer::surviving_step() {
  return impl_.get();
}

torch::Tensor ShardedOptimizer::step(LossClosure closure) {
  impl_->check_group();
  impl_->begin_step(closure != nullptr);
  impl_->consolidated_.reset();
  impl_->take_over(param_groups_);
  torch::Tensor loss = impl_->step_inner(closure);
  impl_->send_parameters();
  return loss;
}

void ShardedOptimizer::consolidate_state_dict(int to) {
  impl_->consolidated_.reset();
  impl_->take_over(param_groups_);
  impl_->consolidate(param_groups_, to);
}

const torch::optim::Optimizer& ShardedOptimizer::consolidated() const {
  TORCH_CHECK(impl_->consolidated_ != nullptr,
              "ZeroRedundancyOptimizer: this rank does not have the state of all ranks; call "
              "consolidate_state_dict(to) on every rank after the last step, with the rank that saves");
  return *impl_->consolidated_;
}

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  consolidated().save(archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  impl_->consolidated_.reset();
  impl_->take_over(param_groups_);
  const auto plain = impl_->make(param_groups_);
  plain->load(archive);
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    param_groups_[group].set_options(plain->param_groups()[group].options().clone());
  }
  impl_->take_state(*plain);
}

void ShardedOptimizer::load_consolidated(const torch::optim::Optimizer& plain) {
  impl_->consolidated_.reset();
  impl_->take_over(param_groups_);
  impl_->check_alike(plain);
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    param_groups_[group].set_options(plain.param_groups()[group].options().clone());
  }
  impl_->copy_state(plain);
}

const torch::optim::Optimizer& ShardedOptimizer::local_optimizer() const {
  return impl_->inner();
}

std::size_t ShardedOptimizer::state_bytes() const {
  return nn_detail::state_bytes(impl_->inner());
}

int ShardedOptimizer::owner_of(const torch::Tensor& parameter) const {
  return impl_->owner_of(parameter);
}

}  // namespace lockstep
