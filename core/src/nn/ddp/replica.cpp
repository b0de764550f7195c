#include "lockstep/nn/replica.h"

#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <unordered_set>

#include "c10d/world/own_group.h"
#include "lockstep/base/shown_model.h"
#include "module_state.h"
#include "module_watch.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "nn/device_backend.h"
#include "nn/owed_meeting.h"
#include "nn/same_on_all_ranks.h"
#include "packed_buffers.h"
#include "parameter_users.h"

namespace lockstep {
namespace {

// Null: the world.
bool same_ranks(const ProcessGroup& a, const ProcessGroup& b) {
  return a == b || (is_initialized() && get_process_group_ranks(a) == get_process_group_ranks(b));
}

// Whether they differ in nothing but values and strides, which a broadcast does not have.
bool stands_for(const torch::Tensor& buffer, const torch::Tensor& known) {
  if (buffer.is_same(known)) return true;
  return buffer.defined() && known.defined() && buffer.options().type_equal(known.options()) &&
         buffer.device() == known.device() && buffer.sizes() == known.sizes() &&
         nn_detail::packed_bytes(buffer) == nn_detail::packed_bytes(known);
}

// Each once, even if it is registered under several names.
std::vector<torch::Tensor> parameters_once(const torch::nn::Module& module) {
  std::vector<torch::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) result.push_back(parameter);
  }
  return result;
}

}  // namespace

Replica::Replica(const std::function<std::shared_ptr<torch::nn::Module>()>& module,
                 const DistributedDataParallelOptions& options, CallSite site)
    : site_(site),
      options_(options),
      group_(options.process_group),
      watch_(std::make_shared<nn_detail::ModuleWatch>()) {
  const CallScope scope(site_);
  try {
    module_ = module();
    if (module_) follow_models(*module_);
  } catch (...) {
    no_module_ = std::current_exception();
  }
  synchronise_state(/*source=*/0, /*send=*/options_.init_sync);
  build_reducer();
}

// The device of the parameters that require a gradient. Frozen parameters may be on other devices.
torch::Device Replica::device() const {
  if (!module_) return torch::kCPU;  // until own_lines() refuses it
  std::optional<torch::Device> frozen;
  for (const auto& item : module_->named_parameters()) {
    if (ignored_.contains(item.key())) continue;
    if (item.value().requires_grad()) return item.value().device();
    if (!frozen) frozen = item.value().device();
  }
  return frozen.value_or(torch::kCPU);
}

void Replica::check_devices() const {
  const torch::Device device = this->device();
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
  return device();  // with its number, which device_ids may lack
}

int Replica::world_size() const {
  return nn_detail::DeviceBackend(group_, device()).world_size();
}

// What is wrong here alone throws; the rest is what all ranks must have alike.
std::string Replica::own_lines() {
  if (no_module_) std::rethrow_exception(no_module_);
  TORCH_CHECK_VALUE(module_, "DistributedDataParallel: expected a module, found a null pointer");
  if (!reducer_) ignored_ = nn_detail::names_to_ignore(*module_, options_.ignored_parameters);
  TORCH_CHECK_VALUE(options_.bucket_cap_mb > 0, "bucket_cap_mb must be positive, got ", options_.bucket_cap_mb);
  check_devices();
  const nn_detail::SharedState state = nn_detail::shared_state(*module_, ignored_);
  const std::vector<NamedParameter> trained = nn_detail::trainable(state);
  Reducer::detach_replaced(trained);
  const nn_detail::DeviceBackend backend(options_.process_group, nn_detail::trained_device(trained));
  refuse_other_ranks(trained);
  std::string lines = fmt::format("backend of the parameters' device: {}\n", backend.name());
  lines += nn_detail::describe(state, options_);
  // These wait for the same layers of other ranks in each forward pass.
  for (const nn_detail::SynchronisedLayer& layer : nn_detail::synchronised_layers(*module_)) {
    if (same_ranks(layer.group, options_.process_group)) lines += fmt::format("synchronised layer '{}'\n", layer.name);
  }
  return lines;
}

// Two means of one gradient over different ranks exclude one another.
void Replica::refuse_other_ranks(const std::vector<NamedParameter>& trained) const {
  const std::vector<int> mine = nn_detail::ranks_of(options_.process_group);
  for (const NamedParameter& parameter : trained) {
    const auto users = nn_detail::users_of(parameter.tensor);
    TORCH_CHECK_VALUE(
        !users || users->ranks.size() < 2 || mine.size() < 2 || users->ranks == mine, "parameter '", parameter.name,
        "' is wrapped already in a group of other ranks",
        fmt::format(" ({}, here {})", fmt::join(users ? users->ranks : mine, ", "), fmt::join(mine, ", ")),
        ": its gradient can be the mean over one of the two; wrap both models in groups of the same "
        "ranks, or name it in ignored_parameters of one of them");
  }
}

// Where all ranks are. The group must serve the parameters' device, which a conversion may have changed.
void Replica::take_own_groups() {
  const c10::DeviceType device = this->device().type();
  if (group_is_for_ == device) return;
  group_ = own_group(options_.process_group, device, "DistributedDataParallel");
  group_is_for_ = device;
  for (const nn_detail::SynchronisedLayer& layer : nn_detail::synchronised_layers(*module_)) {
    if (same_ranks(layer.group, options_.process_group)) nn_detail::group_of_synchronised_layers(layer.group, device);
  }
}

void Replica::synchronise_state(int source, bool send) {
  const auto backend = nn_detail::DeviceBackend::for_host_data(group_, device());
  const char* const what = "DistributedDataParallel needs the same model and options";
  nn_detail::check_same_lines(
      backend, [this] { return own_lines(); }, what);
  // By itself, so that of models with other parameters the parameters are named, and not the types.
  nn_detail::check_same_lines(
      backend, [this] { return nn_detail::describe_types(*module_, ignored_); }, what);
  take_own_groups();
  if (!send || world_size() == 1) return;
  nn_detail::broadcast_state(nn_detail::sent_state(*module_, ignored_, options_),
                             nn_detail::DeviceBackend(group_, device()), source);
}

void Replica::build_reducer() {
  nn_detail::SharedState state = nn_detail::sent_state(*module_, ignored_, options_);
  known_ = nn_detail::trainable(state);
  known_types_.clear();
  for (const NamedParameter& parameter : known_) known_types_.emplace_back(parameter.tensor);
  known_buffers_.clear();
  for (const NamedParameter& buffer : state.buffers)
    known_buffers_.emplace_back(buffer.tensor, TensorType(buffer.tensor));
  ReducerOptions options;
  options.bucket_cap_mb = options_.bucket_cap_mb;
  options.first_bucket_mb = std::min(options.first_bucket_mb, options_.bucket_cap_mb);
  options.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  options.static_graph = options_.static_graph;
  reducer_.reset();  // removes its hooks before new ones are added
  reducer_ = std::make_unique<Reducer>(known_, std::move(state.buffers), group_, options, site_);
  reducer_->set_comm_hook(comm_hook_);
  reducer_->set_before_pass([this] { start_joined_pass(); });
  reducer_->set_synchronises([this] { return guards_.use_count() == 1; });
  reducer_->set_replaced_buffers([this] { return take_replaced_buffers(); });
}

std::vector<torch::Tensor> Replica::parameters() const {
  return parameters_once(with_present_tensors(*module_));
}

Replica::Tensors Replica::tensors_of_module() const {
  Tensors result;
  if (ignored_.empty()) {
    result.parameters = parameters_once(*module_);  // names take time
  } else {
    std::unordered_set<const void*> seen;
    for (const auto& item : module_->named_parameters()) {
      if (ignored_.contains(item.key()) || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      result.parameters.push_back(item.value());
    }
  }
  result.buffers = buffers_of_module();
  return result;
}

std::vector<torch::Tensor> Replica::buffers_of_module() const {
  if (!options_.broadcast_buffers) return {};
  if (ignored_.empty()) return module_->buffers();
  std::vector<torch::Tensor> result;
  for (const auto& item : module_->named_buffers()) {
    if (!ignored_.contains(item.key())) result.push_back(item.value());
  }
  return result;
}

Replica::TensorType::TensorType(const torch::Tensor& tensor) {
  if (!tensor.defined()) return;
  dtype = tensor.dtype();
  device = tensor.device();
  layout = tensor.layout();
}

const Replica::Tensors& Replica::present_tensors() {
  if (present_ && watch_->is_current(*module_)) return *present_;
  present_.reset();
  watch_->look(*module_);
  return present_.emplace(tensors_of_module());
}

bool Replica::parameters_changed(const Tensors& now) const {
  std::size_t next = 0;
  for (const torch::Tensor& parameter : now.parameters) {
    if (!parameter.requires_grad()) continue;
    if (next == known_.size() || !known_[next].tensor.is_same(parameter)) return true;
    if (known_types_[next] != TensorType(parameter)) return true;
    ++next;
  }
  return next != known_.size();
}

// A module may register a buffer in its first pass, or convert one.
bool Replica::buffers_changed(const Tensors& now) const {
  return !std::equal(now.buffers.begin(), now.buffers.end(), known_buffers_.begin(), known_buffers_.end(),
                     [](const torch::Tensor& buffer, const auto& known) {
                       const auto& [tensor, type] = known;
                       return tensor.is_same(buffer) && type == TensorType(buffer);
                     });
}

// A forward pass may put another tensor in the place of a buffer (`mean = 0.9 * mean + 0.1 * x.mean()`): that means
// other values of the buffer. No rank waits for the others because of it, since a rank without samples has not done the
// same. If more than values differ, the next forward pass notices it, and the ranks compare their models.
std::vector<torch::Tensor> Replica::take_replaced_buffers() {
  if (known_buffers_.empty()) return {};
  const std::vector<torch::Tensor>& now = present_tensors().buffers;
  const auto all = [&](const auto& holds) {
    return std::equal(now.begin(), now.end(), known_buffers_.begin(), known_buffers_.end(),
                      [&](const auto& buffer, const auto& known) { return holds(buffer, known.first); });
  };
  if (all([](const auto& buffer, const auto& known) { return buffer.is_same(known); }) || !all(stands_for)) return {};
  for (std::size_t i = 0; i < now.size(); ++i) known_buffers_[i].first = now[i];
  return now;
}

void Replica::before_forward() {
  const CallScope scope(site_);
  reducer_->check_group();
  if (!torch::GradMode::is_enabled() || reducer_->is_recomputing()) return;
  if (throws_where_uneven()) meet_before_pass();
  prepare_pass();
}

void Replica::before_method() {
  const CallScope scope(site_);
  reducer_->check_group();
  if (!torch::GradMode::is_enabled() || reducer_->is_recomputing()) return;
  if (throws_where_uneven()) owe_meeting();
  prepare_pass();
}

Replica::Call::Call(Replica& replica, bool is_forward)
    : replica_(replica),
      is_forward_(is_forward),
      nodes_before_(at::sequence_number::peek()),
      exceptions_before_(std::uncaught_exceptions()) {}

Replica::Call::~Call() {
  try {
    replica_.reducer_->follow_buffers();
  } catch (const std::exception&) {  // of the model's own functions: the next pass throws it
  }
  if (std::uncaught_exceptions() > exceptions_before_ || !torch::GradMode::is_enabled()) return;
  if (!is_forward_ && at::sequence_number::peek() == nodes_before_) return;
  if (!replica_.reducer_->is_recomputing()) replica_.reducer_->after_forward(replica_.module_->is_training());
}

void Replica::take_changed_module() {
  refuse_change_in_join();
  reducer_->settle();
  synchronise_state(/*source=*/0, /*send=*/true);
  build_reducer();
}

void Replica::prepare_pass() {
  const Tensors& now = present_tensors();
  if (!nn_detail::any_trained(now.parameters)) return;  // gradients pass through, and none is of a parameter
  if (module_changed(now)) {
    nn_detail::hold_owed_meeting();
    take_changed_module();
  }
  reducer_->check_sizes();  // of the parameters and buffers that are now known
  reducer_->before_forward();
}

NoSyncGuard Replica::no_sync(bool enable) {
  if (!enable) return NoSyncGuard(nullptr);
  reducer_->forget_lost_forward();
  return NoSyncGuard(guards_);
}

void Replica::register_comm_hook(std::shared_ptr<CommHook> hook) {
  comm_hook_ = std::move(hook);
  reducer_->set_comm_hook(comm_hook_);
}

}  // namespace lockstep
