// The free functions: find the backend of the tensor's device and call it, past LibTorch's dispatcher.
#include "lockstep/c10d/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "c10d/world.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

enum class Mode { kBlocking, kAsync };

// Where a call goes.
struct Target {
  ProcessGroup group;
  c10::intrusive_ptr<c10d::Backend> backend;
  bool is_world;

  c10d::Backend* operator->() const { return backend.get(); }
  int group_rank(int rank) const {
    // In the world both numbers are the same, and the backend checks the range.
    return is_world ? rank : get_group_rank(group, rank);
  }
};

[[noreturn]] void throw_no_backend(const ProcessGroup& group, c10::DeviceType device, const char* operation) {
  const World::Members members = World::of_process().members(group);
  if (!group->hasBackends()) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("{}: rank {} of the world is no member of group '{}' (ranks {})", operation,
                                    get_rank(), members.name, ranks_text(members.ranks)));
  }
  std::vector<std::string> served;
  for (const auto& own : group->getDeviceTypes())
    served.push_back(c10::DeviceTypeName(own.type(), /*lower_case=*/true));
  throw ArgumentError(
      ErrorCode::kUnsupported,
      fmt::format("{}: group '{}' has no backend for tensors on {}; it has {} for {}: copy them there with .to()",
                  operation, members.name, c10::DeviceTypeName(device, /*lower_case=*/true), get_backend(group),
                  fmt::join(served, " and ")));
}

Target find_target(const ProcessGroup& group, c10::DeviceType device, const char* operation) {
  ProcessGroup world = World::of_process().default_group(operation);
  const bool is_world = group == nullptr || group == world;
  Target target{is_world ? std::move(world) : group, nullptr, is_world};
  if (!target.group->hasBackends()) throw_no_backend(target.group, device, operation);
  try {
    target.backend = target.group->getBackend(device);
  } catch (const c10::Error&) {
    throw_no_backend(target.group, device, operation);
  }
  return target;
}

Target find_target(const ProcessGroup& group, const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}: the tensor is undefined", operation));
  }
  return find_target(group, tensor.device().type(), operation);
}

c10::DeviceType device_of(at::TensorList tensors) {
  return tensors.empty() || !tensors.front().defined() ? local_device().type() : tensors.front().device().type();
}

// Fills in what all of c10d's options have.
template <typename Options>
Options make_options(std::chrono::milliseconds timeout, Mode mode) {
  Options options;
  options.timeout = timeout;
  options.asyncOp = mode == Mode::kAsync;
  return options;
}

template <typename Options>
Options make_reduction(const ReductionOptions& from, Mode mode) {
  auto options = make_options<Options>(from.timeout, mode);
  options.reduceOp = from.op;
  return options;
}

Work do_all_reduce(const at::Tensor& tensor, const ReductionOptions& options, Mode mode) {
  const Target target = find_target(options.group, tensor, "all_reduce");
  std::vector<at::Tensor> tensors{tensor};
  return target->allreduce(tensors, make_reduction<c10d::AllreduceOptions>(options, mode));
}

Work do_all_reduce_coalesced(at::TensorList list, const ReductionOptions& options, Mode mode) {
  const Target target = find_target(options.group, device_of(list), "all_reduce_coalesced");
  std::vector<at::Tensor> tensors = list.vec();
  return target->allreduce_coalesced(tensors, make_reduction<c10d::AllreduceCoalescedOptions>(options, mode));
}

Work do_broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, tensor, "broadcast");
  auto own = make_options<c10d::BroadcastOptions>(options.timeout, mode);
  own.rootRank = target.group_rank(src);
  std::vector<at::Tensor> tensors{tensor};
  return target->broadcast(tensors, own);
}

Work do_reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options, Mode mode) {
  const Target target = find_target(options.group, tensor, "reduce");
  auto own = make_reduction<c10d::ReduceOptions>(options, mode);
  own.rootRank = target.group_rank(dst);
  std::vector<at::Tensor> tensors{tensor};
  return target->reduce(tensors, own);
}

Work do_all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, input, "all_gather");
  std::vector<std::vector<at::Tensor>> output_lists{outputs.vec()};
  std::vector<at::Tensor> inputs{input};
  return target->allgather(output_lists, inputs, make_options<c10d::AllgatherOptions>(options.timeout, mode));
}

Work do_all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                               Mode mode) {
  const Target target = find_target(options.group, input, "all_gather_into_tensor");
  at::Tensor to = output;
  at::Tensor from = input;
  return target->_allgather_base(to, from, make_options<c10d::AllgatherOptions>(options.timeout, mode));
}

Work do_gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, input, "gather");
  auto own = make_options<c10d::GatherOptions>(options.timeout, mode);
  own.rootRank = target.group_rank(dst);
  std::vector<std::vector<at::Tensor>> output_lists;
  if (!outputs.empty()) output_lists.push_back(outputs.vec());
  std::vector<at::Tensor> inputs{input};
  return target->gather(output_lists, inputs, own);
}

Work do_scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, output, "scatter");
  auto own = make_options<c10d::ScatterOptions>(options.timeout, mode);
  own.rootRank = target.group_rank(src);
  std::vector<std::vector<at::Tensor>> input_lists;
  if (!inputs.empty()) input_lists.push_back(inputs.vec());
  std::vector<at::Tensor> outputs{output};
  return target->scatter(outputs, input_lists, own);
}

Work do_reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options, Mode mode) {
  const Target target = find_target(options.group, output, "reduce_scatter");
  std::vector<std::vector<at::Tensor>> input_lists{inputs.vec()};
  std::vector<at::Tensor> outputs{output};
  return target->reduce_scatter(outputs, input_lists, make_reduction<c10d::ReduceScatterOptions>(options, mode));
}

Work do_reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                              Mode mode) {
  const Target target = find_target(options.group, output, "reduce_scatter_tensor");
  at::Tensor to = output;
  at::Tensor from = input;
  return target->_reduce_scatter_base(to, from, make_reduction<c10d::ReduceScatterOptions>(options, mode));
}

Work do_all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, device_of(inputs), "all_to_all");
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return target->alltoall(to, from, make_options<c10d::AllToAllOptions>(options.timeout, mode));
}

Work do_all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                          Mode mode) {
  const Target target = find_target(options.group, input, "all_to_all_single");
  at::Tensor to = output;
  at::Tensor from = input;
  std::vector<std::int64_t> output_splits = options.output_splits;
  std::vector<std::int64_t> input_splits = options.input_splits;
  return target->alltoall_base(to, from, output_splits, input_splits,
                               make_options<c10d::AllToAllOptions>(options.timeout, mode));
}

Work do_barrier(const CollectiveOptions& options, Mode mode) {
  const Target target = find_target(options.group, local_device().type(), "barrier");
  return target->barrier(make_options<c10d::BarrierOptions>(options.timeout, mode));
}

}  // namespace

c10d::ReduceOp premul_sum(double factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

void all_reduce(const at::Tensor& tensor, const ReductionOptions& options) {
  do_all_reduce(tensor, options, Mode::kBlocking)->wait();
}
Work all_reduce_async(const at::Tensor& tensor, const ReductionOptions& options) {
  return do_all_reduce(tensor, options, Mode::kAsync);
}

void all_reduce_coalesced(at::TensorList tensors, const ReductionOptions& options) {
  do_all_reduce_coalesced(tensors, options, Mode::kBlocking)->wait();
}
Work all_reduce_coalesced_async(at::TensorList tensors, const ReductionOptions& options) {
  return do_all_reduce_coalesced(tensors, options, Mode::kAsync);
}

void broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options) {
  do_broadcast(tensor, src, options, Mode::kBlocking)->wait();
}
Work broadcast_async(const at::Tensor& tensor, int src, const CollectiveOptions& options) {
  return do_broadcast(tensor, src, options, Mode::kAsync);
}

void reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options) {
  do_reduce(tensor, dst, options, Mode::kBlocking)->wait();
}
Work reduce_async(const at::Tensor& tensor, int dst, const ReductionOptions& options) {
  return do_reduce(tensor, dst, options, Mode::kAsync);
}

void all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options) {
  do_all_gather(outputs, input, options, Mode::kBlocking)->wait();
}
Work all_gather_async(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options) {
  return do_all_gather(outputs, input, options, Mode::kAsync);
}

void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options) {
  do_all_gather_into_tensor(output, input, options, Mode::kBlocking)->wait();
}
Work all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options) {
  return do_all_gather_into_tensor(output, input, options, Mode::kAsync);
}

void gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options) {
  do_gather(input, outputs, dst, options, Mode::kBlocking)->wait();
}
Work gather_async(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options) {
  return do_gather(input, outputs, dst, options, Mode::kAsync);
}

void scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options) {
  do_scatter(output, inputs, src, options, Mode::kBlocking)->wait();
}
Work scatter_async(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options) {
  return do_scatter(output, inputs, src, options, Mode::kAsync);
}

void reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options) {
  do_reduce_scatter(output, inputs, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_async(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options) {
  return do_reduce_scatter(output, inputs, options, Mode::kAsync);
}

void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options) {
  do_reduce_scatter_tensor(output, input, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options) {
  return do_reduce_scatter_tensor(output, input, options, Mode::kAsync);
}

void all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options) {
  do_all_to_all(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options) {
  return do_all_to_all(outputs, inputs, options, Mode::kAsync);
}

void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options) {
  do_all_to_all_single(output, input, options, Mode::kBlocking)->wait();
}
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options) {
  return do_all_to_all_single(output, input, options, Mode::kAsync);
}

void barrier(const CollectiveOptions& options) {
  do_barrier(options, Mode::kBlocking)->wait();
}
Work barrier_async(const CollectiveOptions& options) {
  return do_barrier(options, Mode::kAsync);
}

void monitored_barrier(const CollectiveOptions& options) {
  const Target target = find_target(options.group, local_device().type(), "monitored_barrier");
  target->monitoredBarrier(make_options<c10d::BarrierOptions>(options.timeout, Mode::kBlocking), true);
}

void send(const at::Tensor& tensor, int dst, const PointToPointOptions& options) {
  const Target target = find_target(options.group, tensor, "send");
  const int destination = target.group_rank(dst);
  if (auto* engine = dynamic_cast<ProcessGroupLockstep*>(target.backend.get())) {
    engine->send_blocking(tensor, destination, options.tag, options.timeout);
    return;
  }
  std::vector<at::Tensor> tensors{tensor};
  target->send(tensors, destination, options.tag)->wait(std::max(options.timeout, kNoTimeout));
}

int recv(const at::Tensor& tensor, int src, const PointToPointOptions& options) {
  const Target target = find_target(options.group, tensor, "recv");
  const int source = src == kAnySource ? kAnySource : target.group_rank(src);
  if (auto* engine = dynamic_cast<ProcessGroupLockstep*>(target.backend.get())) {
    return get_global_rank(target.group, engine->recv_blocking(tensor, source, options.tag, options.timeout));
  }
  const Work work = irecv(tensor, src, options);
  work->wait(std::max(options.timeout, kNoTimeout));
  return src == kAnySource ? get_global_rank(target.group, work->sourceRank()) : src;
}

Work isend(const at::Tensor& tensor, int dst, const PointToPointOptions& options) {
  const Target target = find_target(options.group, tensor, "isend");
  std::vector<at::Tensor> tensors{tensor};
  return target->send(tensors, target.group_rank(dst), options.tag);
}

Work irecv(const at::Tensor& tensor, int src, const PointToPointOptions& options) {
  const Target target = find_target(options.group, tensor, "irecv");
  std::vector<at::Tensor> tensors{tensor};
  if (src == kAnySource) return target->recvAnysource(tensors, options.tag);
  return target->recv(tensors, target.group_rank(src), options.tag);
}

std::vector<Work> batch_isend_irecv(std::span<const PointToPoint> list) {
  std::vector<Work> works;
  works.reserve(list.size());
  for (const PointToPoint& entry : list) {
    works.push_back(entry.kind == PointToPoint::Kind::kSend ? isend(entry.tensor, entry.peer, entry.options)
                                                            : irecv(entry.tensor, entry.peer, entry.options));
  }
  return works;
}

}  // namespace lockstep
