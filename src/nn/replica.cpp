#include "lockstep/nn/replica.h"

#include <unordered_set>

#include "backend.h"
#include "module_state.h"

namespace lockstep {
namespace {

// Parameters that require a gradient; shared ones once, under their first name.
std::vector<NamedParameter> trainable(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    result.push_back({item.key(), item.value()});
  }
  return result;
}

std::vector<NamedParameter> buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  for (const auto& item : module.named_buffers()) result.push_back({item.key(), item.value()});
  return result;
}

torch::Device device_of(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters()) return parameter.device();
  return torch::kCPU;
}

nn_detail::Backend backend_for(const torch::nn::Module& module, const DistributedDataParallelOptions& options) {
  return {options.process_group, device_of(module)};
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options)
    : module_(std::move(module)), options_(options) {
  TORCH_CHECK_VALUE(options_.bucket_cap_mb > 0, "bucket_cap_mb must be positive, got ", options_.bucket_cap_mb);
  check_devices();
  synchronise_state(/*source=*/0);
  build_reducer();
}

void Replica::check_devices() const {
  const torch::Device device = device_of(*module_);
  TORCH_CHECK_VALUE(options_.device_ids.size() <= 1, "device_ids: expected at most one device per process, got ",
                    options_.device_ids.size(), "; start one process for each device");
  const auto check = [&](const char* what, const torch::Device& given) {
    TORCH_CHECK_VALUE(given.type() == device.type() && (!given.has_index() || !device.has_index() || given == device),
                      what, ": the module is on ", device, ", got ", given,
                      "; move the module there first (module->to(device))");
  };
  for (const torch::Device& given : options_.device_ids) check("device_ids", given);
  if (options_.output_device) check("output_device", *options_.output_device);
}

std::optional<torch::Device> Replica::input_device() const {
  if (options_.device_ids.empty()) return std::nullopt;
  return device_of(*module_);  // with its number, which device_ids may lack
}

int Replica::world_size() const {
  return backend_for(*module_, options_).world_size();
}

void Replica::synchronise_state(int source) {
  const nn_detail::Backend backend = backend_for(*module_, options_);
  if (backend.world_size() == 1) return;
  nn_detail::check_same_model(*module_, backend);
  nn_detail::broadcast_state(*module_, backend, source);
}

void Replica::build_reducer() {
  known_ = trainable(*module_);
  known_options_.clear();
  for (const NamedParameter& parameter : known_) known_options_.push_back(parameter.tensor.options());
  ReducerOptions options;
  options.bucket_cap_mb = options_.bucket_cap_mb;
  options.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  options.static_graph = options_.static_graph;
  reducer_.reset();  // removes its hooks before new ones are added
  reducer_ = std::make_unique<Reducer>(
      known_, options_.broadcast_buffers ? buffers_of(*module_) : std::vector<NamedParameter>(), options_.process_group,
      options);
  reducer_->set_comm_hook(comm_hook_);
  // Ranks that have finished a join take part in every pass of the others; this tells them of the pass.
  reducer_->set_before_pass([this] {
    if (!joining_) return;
    exchange_activity(/*active=*/true);
    reducer_->set_buffer_source(last_active_);
  });
}

std::vector<torch::Tensor> Replica::parameters() const {
  std::vector<torch::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& parameter : module_->parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) result.push_back(parameter);
  }
  return result;
}

bool Replica::parameters_changed() const {
  std::size_t next = 0;
  for (const torch::Tensor& parameter : parameters()) {
    if (!parameter.requires_grad()) continue;
    if (next == known_.size() || !known_[next].tensor.is_same(parameter)) return true;
    if (!known_options_[next].type_equal(parameter.options())) return true;
    ++next;
  }
  return next != known_.size();
}

void Replica::before_forward() {
  if (!torch::GradMode::is_enabled()) return;
  reducer_->check_sizes();
  if (parameters_changed()) {
    synchronise_state(/*source=*/0);
    build_reducer();
  }
  reducer_->before_forward(synchronise_);
}

int Replica::exchange_activity(bool active) {
  const nn_detail::Backend backend = backend_for(*module_, options_);
  const torch::Tensor mine =
      torch::full({1}, active ? 1 : 0, torch::TensorOptions().dtype(torch::kInt64).device(backend.device()));
  const torch::Tensor all = backend.all_gather(mine).cpu();
  int count = 0;
  for (int rank = backend.world_size() - 1; rank >= 0; --rank) {
    if (all[rank].item<std::int64_t>() == 0) continue;
    last_active_ = rank;
    ++count;
  }
  return count;
}

void Replica::begin_join() {
  TORCH_CHECK(!joining_, "join() inside join()");
  joining_ = world_size() > 1;
}

void Replica::finish_join() {
  if (!joining_) return;
  while (exchange_activity(/*active=*/false) > 0) {
    reducer_->set_buffer_source(last_active_);
    reducer_->shadow_pass();
  }
  joining_ = false;
  reducer_->set_buffer_source(0);
  // Ranks that had finished took no more steps; `last_active_` took all of them.
  nn_detail::broadcast_state(*module_, backend_for(*module_, options_), last_active_);
}

void Replica::cancel_join() {
  joining_ = false;
  reducer_->set_buffer_source(0);
}

void Replica::register_comm_hook(std::shared_ptr<CommHook> hook) {
  comm_hook_ = std::move(hook);
  reducer_->set_comm_hook(comm_hook_);
}

}  // namespace lockstep
