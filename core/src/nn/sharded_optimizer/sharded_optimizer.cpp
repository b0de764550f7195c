#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <typeinfo>
#include <unordered_set>

#include "c10d/backend/group_errors.h"
#include "c10d/world/engine_of.h"
#include "c10d/world/own_group.h"
#include "lockstep/nn/fused_step.h"
#include "nn/same_on_all_ranks.h"
#include "shard_plan.h"
#include "state_copies.h"
#include "zero_redundancy_optimizer_impl.h"

namespace lockstep {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

torch::Device device_of(const Groups& groups) {
  for (const auto& group : groups) {
    for (const torch::Tensor& parameter : group.params()) {
      if (parameter.defined()) return parameter.device();
    }
  }
  return torch::kCPU;
}

std::int64_t bytes_at_once(const ZeroRedundancyOptions& options) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0, "ZeroRedundancyOptimizer: bucket_cap_mb must be positive, got ",
                    options.bucket_cap_mb);
  constexpr double kMost = 1 << 30;  // infinity would be no integer
  return std::max<std::int64_t>(static_cast<std::int64_t>(std::min(options.bucket_cap_mb, kMost) * (1 << 20)), 1);
}

void check_parameters(const Groups& groups) {
  const torch::Device device = device_of(groups);
  std::unordered_set<const void*> seen;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].params().size(); ++i) {
      const torch::Tensor& parameter = groups[group].params()[i];
      const std::string where = fmt::format("ZeroRedundancyOptimizer: parameter {} of group {}", i, group);
      TORCH_CHECK_VALUE(parameter.defined(), where, " is undefined");
      TORCH_CHECK_VALUE(parameter.layout() == torch::kStrided, where, " is ", parameter.layout(),
                        "; expected a dense tensor");
      TORCH_CHECK_VALUE(parameter.device() == device, where, " is on ", parameter.device(), ", others are on ", device,
                        "; all must be on one device");
      TORCH_CHECK_VALUE(seen.insert(parameter.unsafeGetTensorImpl()).second, where,
                        " is there twice; shared parameters belong in the list once, as in "
                        "DistributedDataParallel::parameters()");
    }
  }
  TORCH_CHECK_VALUE(!seen.empty(), "ZeroRedundancyOptimizer: expected parameters, got none");
}

// `groups` have options.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerFactory& factory, const Groups& groups) {
  TORCH_CHECK_VALUE(factory, "ZeroRedundancyOptimizer: expected a function that makes an optimizer, got an empty one");
  auto result = factory(groups);
  TORCH_CHECK_VALUE(result != nullptr, "ZeroRedundancyOptimizer: the factory made no optimizer");
  TORCH_CHECK_VALUE(dynamic_cast<const torch::optim::LBFGS*>(result.get()) == nullptr,
                    "ZeroRedundancyOptimizer: LBFGS cannot be sharded: its search direction and its line search need "
                    "the gradients of all parameters at once, and a rank here has only those of its share; use LBFGS "
                    "itself on every rank");
  // Sets the options again, because constructors of LibTorch's optimizers overwrite options that seem not to be set.
  for (std::size_t group = 0; group < groups.size(); ++group) {
    result->param_groups()[group].set_options(groups[group].options().clone());
  }
  return result;
}

// What a rank makes whose share is empty.
std::unique_ptr<torch::optim::Optimizer> make_without_parameters(const OptimizerFactory& factory,
                                                                 const Groups& groups) {
  Groups empty;
  for (const auto& group : groups) empty.emplace_back(std::vector<torch::Tensor>(), group.options().clone());
  return make_optimizer(factory, empty);
}

}  // namespace

std::string ShardedOptimizer::Impl::own_lines(const Groups& groups, const OptimizerFactory& factory,
                                              const ZeroRedundancyOptions& options) {
  static_cast<void>(bytes_at_once(options));
  TORCH_CHECK_VALUE(options.copies >= 1, "ZeroRedundancyOptimizer: copies must be at least 1, got ", options.copies);
  check_parameters(groups);
  const auto inner = make_without_parameters(factory, groups);
  const torch::optim::Optimizer& optimizer = *inner;
  std::ostringstream text;
  text << "optimizer " << c10::demangle(typeid(optimizer).name()) << " on backend "
       << nn_detail::DeviceBackend(options.process_group, device_of(groups)).name() << '\n'
       << fmt::format("option bucket_cap_mb: {}\n", options.bucket_cap_mb)  // it decides how parameters are cut
       << fmt::format("option copies: {}\n", options.copies);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::vector<torch::Tensor>& parameters = groups[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      text << "group " << group << ", parameter " << i << ": " << parameters[i].scalar_type() << ' '
           << parameters[i].sizes() << '\n';
    }
  }
  return text.str();
}

void ShardedOptimizer::Impl::agree(const ProcessGroup& group, const std::function<std::string()>& lines) {
  // Where parameters are is not known yet.
  nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(group, local_device()), lines,
                              "ZeroRedundancyOptimizer needs the same parameters in the same groups");
}

ShardedOptimizer::Impl::Channel::Channel(const ZeroRedundancyOptions& options, torch::Device device)
    : group(own_group(options.process_group, device.type(), "ZeroRedundancyOptimizer")),
      backend(group, device),
      exchange(backend, bytes_at_once(options)) {}

ShardedOptimizer::Impl::Impl(torch::optim::Optimizer& whole, OptimizerFactory factory,
                             const ZeroRedundancyOptions& options)
    : whole_(whole),
      factory_(std::move(factory)),
      options_(options),
      channel_(std::make_unique<Channel>(options, device_of(whole.param_groups()))),
      load_(static_cast<std::size_t>(backend().world_size()), 0) {
  take_parameters(whole.param_groups());
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::Impl::make(const Groups& groups) const {
  return make_optimizer(factory_, groups);
}

int ShardedOptimizer::Impl::owner_of(const torch::Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(found != owners_.end(),
                    "ZeroRedundancyOptimizer: this tensor is none of the parameters that had an owner after the last "
                    "step");
  return found->second.rank;
}

bool ShardedOptimizer::Impl::has_new_parameters(const Groups& groups) const {
  return !std::equal(groups.begin(), groups.end(), known_.begin(), known_.end(),
                     [](const auto& group, const auto& old) {
                       return std::equal(group.params().begin(), group.params().end(), old.begin(), old.end(),
                                         [](const torch::Tensor& a, const torch::Tensor& b) { return a.is_same(b); });
                     });
}

ShardedOptimizer::Impl::Groups ShardedOptimizer::Impl::groups_of(
    const Groups& groups, const std::function<bool(const torch::Tensor&)>& is_in) const {
  Groups result;
  for (const auto& group : groups) {
    std::vector<torch::Tensor> some;
    std::copy_if(group.params().begin(), group.params().end(), std::back_inserter(some), is_in);
    result.emplace_back(std::move(some), group.options().clone());
  }
  return result;
}

ShardedOptimizer::Impl::Groups ShardedOptimizer::Impl::share_of(const Groups& groups, int rank) const {
  return groups_of(groups, [&](const torch::Tensor& parameter) { return owner_of(parameter) == rank; });
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::Impl::part_of(const Groups& groups) const {
  auto part = make(groups);
  part->state().clear();
  for (const auto& group : groups) {
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = inner_->state().find(parameter.unsafeGetTensorImpl());
      if (found != inner_->state().end()) part->state()[found->first] = found->second->clone();
    }
  }
  return part;
}

ShardedOptimizer::Impl::Groups ShardedOptimizer::Impl::assign_new(const Groups& groups) {
  Groups result;
  for (const auto& group : groups) {
    std::vector<torch::Tensor> unowned;
    std::vector<std::int64_t> sizes;
    for (const torch::Tensor& parameter : group.params()) {
      if (owners_.contains(parameter.unsafeGetTensorImpl())) continue;
      unowned.push_back(parameter);
      sizes.push_back(static_cast<std::int64_t>(parameter.nbytes()));
    }
    const std::vector<int> owners = nn_detail::assign_owners(sizes, load_);
    std::vector<torch::Tensor> mine;
    for (std::size_t i = 0; i < unowned.size(); ++i) {
      const decltype(Owner::parameter) weak(unowned[i].getIntrusivePtr());
      owners_.insert_or_assign(unowned[i].unsafeGetTensorImpl(), Owner{weak, owners[i]});
      if (holds(owners[i])) mine.push_back(unowned[i]);
    }
    result.emplace_back(std::move(mine), group.options().clone());
  }
  return result;
}

void ShardedOptimizer::Impl::note_held(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) held_.insert(parameter.unsafeGetTensorImpl());
  }
}

void ShardedOptimizer::Impl::take_parameters(const Groups& groups) {
  // Constructs an optimizer for the new parameters, because some kinds make a parameter's first state there.
  auto added = make(assign_new(groups));
  note_held(*added);
  known_.clear();
  for (const auto& group : groups) known_.push_back(group.params());
  if (!inner_) {
    inner_ = std::move(added);
    return;
  }
  Groups share = groups_of(groups, [&](const torch::Tensor& parameter) { return holds(owner_of(parameter)); });
  inner_->param_groups().clear();
  for (auto& group : share) inner_->param_groups().push_back(std::move(group));
  for (auto& [parameter, state] : added->state()) inner_->state()[parameter] = std::move(state);
}

void ShardedOptimizer::Impl::take_over(const Groups& groups) {
  if (has_new_parameters(groups)) {
    agree(channel_->group, [&] {
      std::string lines = own_lines(groups, factory_, options_);
      TORCH_CHECK_VALUE(device_of(groups) == backend().device(), "ZeroRedundancyOptimizer: parameters are on ",
                        device_of(groups), " now, and were on ", backend().device(), " at first; make a new optimizer");
      return lines;
    });
    take_parameters(groups);
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    inner_->param_groups()[group].set_options(groups[group].options().clone());
  }
}

torch::Tensor ShardedOptimizer::Impl::step_inner(const torch::optim::Optimizer::LossClosure& closure) {
  bool in_closure = false;  // what the closure throws is the program's own affair, as without a closure
  torch::optim::Optimizer::LossClosure watched;
  if (closure) {
    watched = [&] {
      in_closure = true;
      torch::Tensor loss = closure();
      in_closure = false;
      return loss;
    };
  }
  try {
    if (!options_.fused || closure) return inner_->step(watched);
    fused_step(*inner_);
    return {};
  } catch (const std::exception& error) {
    if (!in_closure) refuse_to_send(error);
    throw;
  }
}

// Before this rank's share changes.
void ShardedOptimizer::Impl::check_group() const {
  if (around_) return;
  if (const Status replaced = backend().replaced(); !replaced.ok()) throw_status(replaced, "ZeroRedundancyOptimizer");
}

// In place of the first all-gather. Nothing is said where there is none, or where the backend is not the engine.
void ShardedOptimizer::Impl::refuse_to_send(const std::exception& why) const {
  const auto shares = shares_to_send();
  const bool any = std::any_of(shares.begin(), shares.end(), [](const auto& share) {
    return std::any_of(share.begin(), share.end(), [](const torch::Tensor& one) { return one.numel() > 0; });
  });
  const bool is_later = around_ && !backend().replaced().ok();  // the others wait in a later world than this share's
  if (!is_later && (backend().world_size() == 1 || !any)) return;
  const ProcessGroup group = is_later || !channel_->group ? default_group() : channel_->group;
  if (ProcessGroupLockstep* const engine = engine_of(group, backend().device().type()))
    engine->refuse("the step of the sharded optimizer: " + plain_text(why));
}

// A frozen parameter that still has a gradient is updated, as by the plain optimizer.
bool ShardedOptimizer::Impl::is_sent(const torch::Tensor& parameter) const {
  return parameter.requires_grad() || parameter.grad().defined();
}

std::vector<std::vector<torch::Tensor>> ShardedOptimizer::Impl::shares_to_send() const {
  std::vector<std::vector<torch::Tensor>> shares(static_cast<std::size_t>(backend().world_size()));
  for (const std::vector<torch::Tensor>& group : known_) {
    for (const torch::Tensor& parameter : group) {
      if (is_sent(parameter)) shares[owner_of(parameter)].push_back(parameter);
    }
  }
  return shares;
}

void ShardedOptimizer::Impl::send_parameters() {
  const auto send = [this] {
    if (backend().world_size() > 1) channel_->exchange.run(shares_to_send());
  };
  around_ ? around_(send) : send();
}

void ShardedOptimizer::Impl::consolidate(const Groups& groups, int to) {
  const int root = get_group_rank(options_.process_group ? options_.process_group : default_group(), to);
  const std::string own = nn_detail::optimizer_bytes(*part_of(share_of(groups, backend().rank())));
  if (backend().rank() != root) return backend().send_bytes(own, root);
  auto all = make(groups);
  for (int rank = 0; rank < backend().world_size(); ++rank) {
    const auto part = make(share_of(groups, rank));
    nn_detail::read_optimizer(rank == root ? own : backend().receive_bytes(rank), *part, backend().device());
    for (auto& [parameter, state] : part->state()) all->state()[parameter] = std::move(state);
  }
  consolidated_ = std::move(all);
}

// As in a new optimizer: no state, or that which its constructor makes (Adagrad). What is loaded has no state for a
// parameter that has taken no step, and the present one must not live on there.
void ShardedOptimizer::Impl::reset_state() {
  is_new_ = false;
  has_loaded_ = true;
  note_held(*inner_);
  const auto fresh = make(inner_->param_groups());
  inner_->state().clear();
  for (auto& [parameter, state] : fresh->state()) inner_->state()[parameter] = std::move(state);
}

void ShardedOptimizer::Impl::take_state(torch::optim::Optimizer& plain) {
  reset_state();
  for (const auto& group : inner_->param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = plain.state().find(parameter.unsafeGetTensorImpl());
      if (found == plain.state().end()) continue;
      nn_detail::convert_state(*found->second, parameter);
      inner_->state()[found->first] = std::move(found->second);
    }
  }
}

void ShardedOptimizer::Impl::copy_state(const torch::optim::Optimizer& plain) {
  reset_state();
  for (std::size_t group = 0; group < known_.size(); ++group) {
    for (std::size_t i = 0; i < known_[group].size(); ++i) {
      if (!holds(owner_of(known_[group][i]))) continue;
      const auto found = plain.state().find(plain.param_groups()[group].params()[i].unsafeGetTensorImpl());
      if (found == plain.state().end()) continue;
      auto copy = nn_detail::copy_state(*found->second, backend().device());
      nn_detail::convert_state(*copy, known_[group][i]);
      inner_->state()[known_[group][i].unsafeGetTensorImpl()] = std::move(copy);
    }
  }
}

void ShardedOptimizer::Impl::check_alike(const torch::optim::Optimizer& plain) const {
  const Groups& groups = plain.param_groups();
  TORCH_CHECK_VALUE(groups.size() == known_.size(), "load_consolidated: expected an optimizer with ", known_.size(),
                    " parameter groups, got one with ", groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::vector<torch::Tensor>& theirs = groups[group].params();
    TORCH_CHECK_VALUE(theirs.size() == known_[group].size(), "load_consolidated: expected ", known_[group].size(),
                      " parameters in group ", group, ", got ", theirs.size());
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      TORCH_CHECK_VALUE(theirs[i].sizes() == known_[group][i].sizes(), "load_consolidated: parameter ", i, " of group ",
                        group, " has size ", known_[group][i].sizes(), " here, ", theirs[i].sizes(), " there");
    }
  }
}

}  // namespace lockstep
