#include "nn/device_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "c10d/backend/backend_call.h"
#include "c10d/world/own_group.h"
#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/c10d/group_backend.h"

namespace lockstep::nn_detail {
namespace {

// Unlikely to be a tag of the program's own messages.
constexpr int kBytesTag = 0x5a65524f;

// A rank that is no member has a handle of the group too, without backends.
ProcessGroup as_member(const ProcessGroup& group) {
  ProcessGroup own = group ? group : default_group();
  TORCH_CHECK_VALUE(own->hasBackends(), "rank ", get_rank(), " of the world is no member of this group (",
                    fmt::format("ranks {}", fmt::join(get_process_group_ranks(own), ", ")),
                    "); make this call on the group's members alone");
  return own;
}

}  // namespace

DeviceBackend::DeviceBackend(const ProcessGroup& group, torch::Device device)
    : backend_(as_member(group)->getBackend(device.type())),
      hooks_of_(group_beside(as_member(group))),
      ours_(dynamic_cast<const GroupBackend*>(backend_.get())),
      device_(device),
      has_avg_(capabilities_of(*backend_).has_avg()),
      orders_by_stream_(!device.is_cpu() && capabilities_of(*backend_).orders_by_stream()) {}

DeviceBackend DeviceBackend::for_host_data(const ProcessGroup& group, torch::Device device) {
  const ProcessGroup target = as_member(group);
  const std::vector<torch::Device> served = target->getDeviceTypes();
  const auto serves = [&](c10::DeviceType type) {
    return std::any_of(served.begin(), served.end(), [&](const torch::Device& one) { return one.type() == type; });
  };
  if (serves(torch::kCPU)) return {target, torch::kCPU};
  for (const torch::Device& one : {device, local_device()}) {
    if (serves(one.type())) return {target, one};
  }
  return {target, served.empty() ? device : served.front()};
}

template <typename Run, typename... Tensors>
c10::intrusive_ptr<c10d::Work> DeviceBackend::call(flight::Op op, bool async, int root, const Run& run,
                                                   const Tensors&... tensors) const {
  const ProcessGroup group = hooks_of_.lock();
  return BackendCall(group.get(), *backend_, op, async, root).call(run, tensors...);
}

Status DeviceBackend::replaced() const {
  return ours_ == nullptr ? Status() : ours_->replaced();
}

torch::Tensor DeviceBackend::allocate(std::int64_t elements, torch::Dtype dtype) const {
  const auto options = torch::TensorOptions().dtype(dtype).device(device_);
  const auto index = device_.has_index() ? device_.index() : c10::DeviceIndex{0};
  if (!device_.is_cpu() || !backend_->supportsTensorAlloc(index)) return torch::zeros({elements}, options);
  return backend_->allocateTensor(static_cast<long>(elements), options).zero_();  // NOLINT(google-runtime-int)
}

c10::intrusive_ptr<c10d::Work> DeviceBackend::start_mean(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> tensors{flat};
  c10d::AllreduceOptions options;
  options.reduceOp = has_avg_ ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  if (!has_avg_) tensors[0].div_(world_size());
  return call(
      flight::Op::kAllReduce, true, -1, [&] { return backend_->allreduce(tensors, options); }, tensors);
}

c10::intrusive_ptr<c10d::Work> DeviceBackend::start_sum(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> tensors{flat};
  return call(
      flight::Op::kAllReduce, true, -1, [&] { return backend_->allreduce(tensors); }, tensors);
}

c10::intrusive_ptr<c10d::Work> DeviceBackend::start_max(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> tensors{flat};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  return call(
      flight::Op::kAllReduce, true, -1, [&] { return backend_->allreduce(tensors, options); }, tensors);
}

c10::intrusive_ptr<c10d::Work> DeviceBackend::start_broadcast(const torch::Tensor& tensor, int root) const {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return call(
      flight::Op::kBroadcast, true, root, [&] { return backend_->broadcast(tensors, options); }, tensors);
}

void DeviceBackend::broadcast(const torch::Tensor& tensor, int root) const {
  start_broadcast(tensor, root)->wait();
}

torch::Tensor DeviceBackend::all_gather(const torch::Tensor& flat) const {
  torch::Tensor input = flat.contiguous().resolve_conj().resolve_neg();
  torch::Tensor output = torch::empty({world_size() * flat.numel()}, flat.options());
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  const auto gather = [&] { return backend_->_allgather_base(output, input, options); };
  call(flight::Op::kAllGatherIntoTensor, false, -1, gather, output, input)->wait();
  return output.view({world_size(), flat.numel()});
}

std::vector<torch::Tensor> DeviceBackend::all_gather_uneven(const torch::Tensor& flat) const {
  const torch::Tensor lengths =
      all_gather(torch::tensor({flat.numel()}, torch::TensorOptions().dtype(torch::kInt64).device(device_))).cpu();
  const std::int64_t longest = lengths.max().item<std::int64_t>();
  // Padded to the longest, because some backends gather only equal sizes.
  torch::Tensor padded = torch::zeros({longest}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  const torch::Tensor all = all_gather(padded);
  std::vector<torch::Tensor> result;
  result.reserve(world_size());
  for (int rank = 0; rank < world_size(); ++rank) {
    result.push_back(all[rank].narrow(0, 0, lengths[rank][0].item<std::int64_t>()));
  }
  return result;
}

void DeviceBackend::all_gather_parts(std::vector<torch::Tensor> parts) const {
  std::vector<torch::Tensor> input{parts[rank()]};
  std::vector<std::vector<torch::Tensor>> outputs{std::move(parts)};
  const auto gather = [&] { return backend_->allgather(outputs, input); };
  call(flight::Op::kAllGather, true, -1, gather, outputs, input)->wait();
}

void DeviceBackend::send_bytes(const std::string& bytes, int to) const {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<torch::Tensor> length{torch::tensor({size}, torch::kInt64).to(device_)};
  backend_->send(length, to, kBytesTag)->wait();
  std::vector<torch::Tensor> data{torch::from_blob(const_cast<char*>(bytes.data()), {size}, torch::kByte).to(device_)};
  backend_->send(data, to, kBytesTag)->wait();
}

std::string DeviceBackend::receive_bytes(int from) const {
  std::vector<torch::Tensor> length{torch::empty({1}, torch::TensorOptions().dtype(torch::kInt64).device(device_))};
  backend_->recv(length, from, kBytesTag)->wait();
  const auto options = torch::TensorOptions().dtype(torch::kByte).device(device_);
  std::vector<torch::Tensor> data{torch::empty({length[0].cpu().item<std::int64_t>()}, options)};
  backend_->recv(data, from, kBytesTag)->wait();
  const torch::Tensor local = data[0].cpu();
  return {static_cast<const char*>(local.const_data_ptr()), static_cast<std::size_t>(local.numel())};
}

}  // namespace lockstep::nn_detail
