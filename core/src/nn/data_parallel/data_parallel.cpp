#include "lockstep/nn/data_parallel.h"

#include <ATen/WrapDimUtils.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_set>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "data_parallel_graph.h"
#include "data_parallel_replicas.h"
#include "data_parallel_threads.h"
#include "launch/process/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/base/shown_model.h"

namespace lockstep::nn_detail {
namespace {

// Freed memory stays with the process from now on, as `lockstep run` does it for its workers: up to 512 MiB in large
// pieces, and the heaps of all threads. glibc would give a heap of 64 MiB of another thread than the main one back to
// the system whenever it is empty, and a replica's gradients and activations would be new pages in every step.
// Variables of the environment that say otherwise (MALLOC_TOP_PAD_ ...) are respected. Does nothing with other C
// libraries.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kKept = 512 << 20;
  constexpr int kMostInHeaps = 32 << 20;  // the most that older releases take
  constexpr int kHeap = 64 << 20;
  // Not from Environment: glibc takes a variable without a value as set.
  static const bool once = [] {
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, kKept);
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr && mallopt(M_MMAP_THRESHOLD, kKept) == 0)
      mallopt(M_MMAP_THRESHOLD, kMostInHeaps);
    // An empty heap goes only if that leaves more than this free in the one before it.
    if (std::getenv("MALLOC_TOP_PAD_") == nullptr) mallopt(M_TOP_PAD, kHeap);
    return true;
  }();
  static_cast<void>(once);
#endif
}

const torch::nn::Module& checked(const std::shared_ptr<torch::nn::Module>& module) {
  TORCH_CHECK_VALUE(module, "DataParallel: expected a module, found a null pointer");
  return *module;
}

torch::Device device_of(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters()) return parameter.device();
  for (const torch::Tensor& buffer : module.buffers()) return buffer.device();
  return torch::kCPU;
}

// CPU without a number, others with one: as tensors name their devices.
torch::Device with_index(torch::Device device) {
  if (device.is_cpu()) return torch::kCPU;
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

int count_of(torch::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::VirtualGuardImpl(type).deviceCount() : 0;
}

std::vector<torch::Device> all_devices(const torch::nn::Module& module, const DataParallelOptions& options) {
  const torch::Device own = device_of(module);
  if (own.is_cpu()) return std::vector<torch::Device>(static_cast<std::size_t>(options.cpu_replicas), torch::kCPU);
  std::vector<torch::Device> devices{own};
  for (int i = 0; i < count_of(own.type()); ++i) {
    const torch::Device device(own.type(), static_cast<torch::DeviceIndex>(i));
    if (device != own) devices.push_back(device);
  }
  return devices;
}

void check_options(const DataParallelOptions& options) {
  TORCH_CHECK_VALUE(options.cpu_replicas >= 1, "DataParallel: cpu_replicas must be at least 1, got ",
                    options.cpu_replicas);
  TORCH_CHECK_VALUE(options.threads_per_replica >= 0, "DataParallel: threads_per_replica must not be negative, got ",
                    options.threads_per_replica);
  if (options.device_ids.empty()) return;
  const bool cpu = options.device_ids.front().is_cpu();
  TORCH_CHECK_VALUE(
      options.cpu_replicas == 1 || (cpu && options.device_ids.size() == static_cast<std::size_t>(options.cpu_replicas)),
      "DataParallel: device_ids names ", options.device_ids.size(), " device(s), but cpu_replicas is ",
      options.cpu_replicas, "; give one of them");
}

std::vector<torch::Device> choose_devices(const torch::nn::Module& module, const DataParallelOptions& options) {
  check_options(options);
  if (options.device_ids.empty()) return all_devices(module, options);
  std::vector<torch::Device> devices;
  const torch::DeviceType type = options.device_ids.front().type();
  for (const torch::Device& given : options.device_ids) {
    TORCH_CHECK_VALUE(given.type() == type, "DataParallel: device_ids must be of one type, got ",
                      options.device_ids.front(), " and ", given);
    TORCH_CHECK_VALUE(given.is_cpu() || given.index() < count_of(type), "DataParallel: device_ids names ", given,
                      ", but there are ", count_of(type), " devices of this type");
    const torch::Device device = with_index(given);
    TORCH_CHECK_VALUE(device.is_cpu() || std::find(devices.begin(), devices.end(), device) == devices.end(),
                      "DataParallel: device_ids names ", device,
                      " twice; two replicas on one device would only wait for one another");
    devices.push_back(device);
  }
  return devices;
}

torch::Device choose_output(const std::vector<torch::Device>& devices, const DataParallelOptions& options) {
  const torch::Device given = options.output_device.value_or(devices.front());
  TORCH_CHECK_VALUE(given.is_cpu() || given.type() == devices.front().type(),
                    "DataParallel: output_device must be of the type of device_ids, or the CPU; got ", given);
  TORCH_CHECK_VALUE(given.is_cpu() || given.index() < count_of(given.type()), "DataParallel: output_device is ", given,
                    ", but there are ", count_of(given.type()), " devices of this type");
  return with_index(given);
}

std::vector<ReplicaPlace> places_of(const std::vector<torch::Device>& devices, const DataParallelOptions& options) {
  std::vector<ReplicaPlace> places;
  const std::vector<int> allowed = launch::allowed_cores();
  const int replicas = static_cast<int>(devices.size());
  const auto shares = launch::share_cores(allowed, replicas);
  // A control group may pay for less than the cores that the process may run on.
  const int usable = launch::usable_cores();
  const bool limited = usable < static_cast<int>(allowed.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!devices[i].is_cpu()) {
      places.push_back({devices[i], devices[i].str()});
      continue;
    }
    const int cores = std::max(1, limited ? usable / replicas : static_cast<int>(shares[i].size()));
    places.push_back({devices[i], fmt::format("cpu:{}", i), shares[i],
                      options.threads_per_replica > 0 ? options.threads_per_replica : cores});
  }
  if (devices.front().is_cpu() && replicas > usable && !allowed.empty()) {
    log::warning(fmt::format("DataParallel: {} CPU replicas share {} core(s), so they are not faster than {}", replicas,
                             usable, usable));
  }
  return places;
}

bool counts_changes(const torch::Tensor& input, const torch::Tensor& part) {
  return part.defined() && input.layout() == torch::kStrided && !input.is_inference() && !part.is_inference() &&
         part.is_alias_of(input);
}

// Gives a part that shares the input's memory a version counter of its own while replicas run. It starts at the input's
// version. So a change by one replica does not invalidate the graphs of the others.
void count_apart(const torch::Tensor& input, const torch::Tensor& part) {
  if (!counts_changes(input, part)) return;
  part.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(static_cast<std::uint32_t>(input._version())));
}

// After the replicas have ended: if a part was changed, the input counts as changed, so the caller's graphs notice.
// Otherwise the parts share the input's version counter again, so the replicas' graphs notice later changes of the
// input.
void count_together(const torch::Tensor& input, const std::vector<torch::Tensor>& parts) {
  const auto changed = [&](const auto& part) {
    return counts_changes(input, part) && part._version() != input._version();
  };
  if (std::any_of(parts.begin(), parts.end(), changed)) {
    input.unsafeGetTensorImpl()->bump_version();
    return;
  }
  for (const torch::Tensor& part : parts) {
    if (counts_changes(input, part))
      part.unsafeGetTensorImpl()->set_version_counter(input.unsafeGetTensorImpl()->version_counter());
  }
}

}  // namespace

struct ReplicaSet::State {
  State(std::shared_ptr<torch::nn::Module> given, const std::vector<torch::Device>& devices,
        const DataParallelOptions& options, Factory factory)
      : module(std::move(given)), dim(options.dim) {
    ReplicaModules::check_device(*module, devices.front());
    if (devices.size() == 1) return;
    replicas = std::make_unique<ReplicaModules>(module, devices, std::move(factory));
    if (devices.front().is_cpu()) keep_freed_memory();
    threads = std::shared_ptr<ReplicaThreads>(new ReplicaThreads(places_of(devices, options)), LeakInForks());
  }
  Wire wire_of_part(const parallel::detail::Tensors& inputs, std::size_t index,
                    const std::vector<std::int64_t>& lengths) const;
  void give_leaves(PassGraph& graph, const parallel::detail::Tensors& inputs, const std::vector<std::size_t>& trained,
                   std::vector<torch::Tensor>& parts, std::size_t replica) const;

  std::shared_ptr<torch::nn::Module> module;
  std::int64_t dim;
  std::unique_ptr<ReplicaModules> replicas;  // none for one device
  std::shared_ptr<ReplicaThreads> threads;
};

ReplicaSet::ReplicaSet(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options, Factory factory)
    : devices_(choose_devices(checked(module), options)),
      output_device_(choose_output(devices_, options)),
      state_(std::make_unique<State>(std::move(module), devices_, options, std::move(factory))) {
  if (devices_.size() == 1 && devices_.front().is_cpu())
    log::info("DataParallel: one replica on the CPU, so the module runs by itself; set cpu_replicas to have more");
}

ReplicaSet::~ReplicaSet() = default;

std::vector<torch::Tensor> ReplicaSet::parameters() const {
  std::vector<torch::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& parameter : with_present_tensors(*state_->module).parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) result.push_back(parameter);
  }
  return result;
}

void ReplicaSet::renew() {
  if (state_->replicas) state_->replicas->renew();
}

void ReplicaSet::check_module() const {
  ReplicaModules::check_device(*state_->module, devices_.front());
}

Wire ReplicaSet::State::wire_of_part(const parallel::detail::Tensors& inputs, std::size_t index,
                                     const std::vector<std::int64_t>& lengths) const {
  const torch::Tensor& tensor = inputs.tensors[index];
  Wire wire{tensor.device()};
  if (!parallel::detail::is_split(inputs, index)) return wire;
  wire.split = true;
  wire.dim = at::maybe_wrap_dim(dim, tensor.dim());
  wire.lengths = lengths;
  return wire;
}

// Runs in the replica's thread. Makes the replica's leaves, and the `parts` that its module gets. A part whose gradient
// is wanted is a view of its leaf, because the module may change its input in place, and a leaf must not change.
void ReplicaSet::State::give_leaves(PassGraph& graph, const parallel::detail::Tensors& inputs,
                                    const std::vector<std::size_t>& trained, std::vector<torch::Tensor>& parts,
                                    std::size_t replica) const {
  const torch::Device device = threads->place(replica).device;
  std::vector<torch::Tensor>& leaves = graph.replicas[replica].leaves;
  leaves = replicas->trained_of(replica);
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    if (!parts[i].defined()) continue;
    parts[i] = parts[i].variable_data().to(device, /*non_blocking=*/!device.is_cpu());
    count_apart(inputs.tensors[i], parts[i]);
    if (next == trained.size() || trained[next] != i) continue;
    ++next;
    leaves.push_back(parts[i].detach().requires_grad_());
    parts[i] = at::_unsafe_view(leaves.back(), leaves.back().sizes());
    count_apart(inputs.tensors[i], parts[i]);
  }
}

std::vector<torch::Tensor> ReplicaSet::run(const parallel::detail::Tensors& inputs, const Body& body,
                                           const Check& check) {
  State& state = *state_;
  const std::vector<std::int64_t> lengths = parallel::detail::plan_split(inputs, devices_.size(), state.dim);
  const std::size_t count = std::max<std::size_t>(1, lengths.size());
  state.replicas->take_over(count);

  auto graph = c10::make_intrusive<PassGraph>();
  graph->threads = state.threads;
  graph->replicas.resize(count);
  std::vector<std::size_t> wanted;  // the inputs whose gradient is wanted
  const bool gradients = torch::GradMode::is_enabled();
  if (gradients) graph->inputs = state.replicas->trained();
  for (const torch::Tensor& parameter : graph->inputs) graph->input_wires.push_back({parameter.device()});
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    if (!gradients || !inputs.tensors[i].defined() || !inputs.tensors[i].requires_grad()) continue;
    wanted.push_back(i);
    graph->inputs.push_back(inputs.tensors[i]);
    graph->input_wires.push_back(state.wire_of_part(inputs, i, lengths));
  }

  std::vector<std::vector<torch::Tensor>> parts(count);  // by replica
  state.threads->run(count, [&](std::size_t replica) {
    state.replicas->take_over_parameters(replica);
    std::vector<torch::Tensor>& own = parts[replica];
    for (std::size_t i = 0; i < inputs.tensors.size(); ++i)
      own.push_back(parallel::detail::part_of(inputs, i, lengths, replica, state.dim));
    state.give_leaves(*graph, inputs, wanted, own, replica);
    graph->replicas[replica].roots = body(replica, state.replicas->module(replica), own);
  });
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    std::vector<torch::Tensor> of_input;
    of_input.reserve(parts.size());
    for (const std::vector<torch::Tensor>& own : parts) of_input.push_back(own[i]);
    count_together(inputs.tensors[i], of_input);
  }
  parts.clear();

  const std::vector<std::string> names = check(count);
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<torch::Tensor> roots;
    for (const ReplicaGraph& replica : graph->replicas) roots.push_back(replica.roots[i]);
    Wire wire{output_device_, /*split=*/true};
    if (roots.front().defined()) {
      parallel::detail::check_parts(roots, state.dim, names[i]);
      const std::int64_t dims = roots.front().dim();
      wire.stacked = dims == 0;
      if (!wire.stacked) wire.dim = at::maybe_wrap_dim(state.dim, dims);
      for (const torch::Tensor& part : roots) wire.lengths.push_back(wire.stacked ? 1 : part.size(wire.dim));
    }
    graph->output_wires.push_back(std::move(wire));
  }
  return connect(graph);
}

}  // namespace lockstep::nn_detail
