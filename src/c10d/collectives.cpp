// The free functions: find the backend of the tensor's device and call it, past LibTorch's dispatcher.
#include "lockstep/c10d/collectives.h"

#include <fmt/format.h>

#include "c10d/target.h"

namespace lockstep {
namespace {

template <typename Options>
Options make_reduction(const ReductionOptions& from, Mode mode, const char* operation) {
  auto options = make_options<Options>(from.timeout, mode, operation);
  options.reduceOp = from.op;
  return options;
}

Work do_all_reduce(const at::Tensor& tensor, const ReductionOptions& options, Mode mode) {
  constexpr const char* kName = "all_reduce";
  const Target target = find_target(options.group, tensor, kName);
  std::vector<at::Tensor> tensors{tensor};
  return target->allreduce(tensors, make_reduction<c10d::AllreduceOptions>(options, mode, kName));
}

Work do_all_reduce_coalesced(at::TensorList list, const ReductionOptions& options, Mode mode) {
  constexpr const char* kName = "all_reduce_coalesced";
  const Target target = find_target(options.group, list, kName);
  std::vector<at::Tensor> tensors = list.vec();
  return target->allreduce_coalesced(tensors, make_reduction<c10d::AllreduceCoalescedOptions>(options, mode, kName));
}

Work do_broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "broadcast";
  const Target target = find_target(options.group, tensor, kName);
  auto own = make_options<c10d::BroadcastOptions>(options.timeout, mode, kName);
  own.rootRank = target.group_rank(src, kName);
  std::vector<at::Tensor> tensors{tensor};
  return target->broadcast(tensors, own);
}

Work do_reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options, Mode mode) {
  constexpr const char* kName = "reduce";
  const Target target = find_target(options.group, tensor, kName);
  auto own = make_reduction<c10d::ReduceOptions>(options, mode, kName);
  own.rootRank = target.group_rank(dst, kName);
  std::vector<at::Tensor> tensors{tensor};
  return target->reduce(tensors, own);
}

Work do_all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "all_gather";
  const Target target = find_target(options.group, input, kName);
  std::vector<std::vector<at::Tensor>> output_lists{outputs.vec()};
  std::vector<at::Tensor> inputs{input};
  return target->allgather(output_lists, inputs, make_options<c10d::AllgatherOptions>(options.timeout, mode, kName));
}

Work do_all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                               Mode mode) {
  constexpr const char* kName = "all_gather_into_tensor";
  const Target target = find_target(options.group, input, kName);
  at::Tensor to = output;
  at::Tensor from = input;
  return target->_allgather_base(to, from, make_options<c10d::AllgatherOptions>(options.timeout, mode, kName));
}

Work do_all_gather_coalesced(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                             const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "all_gather_coalesced";
  const Target target = find_target(options.group, inputs, kName);
  std::vector<std::vector<at::Tensor>> to(outputs.begin(), outputs.end());
  std::vector<at::Tensor> from = inputs.vec();
  return target->allgather_coalesced(to, from, make_options<c10d::AllgatherOptions>(options.timeout, mode, kName));
}

Work do_all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs,
                                         const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "all_gather_into_tensor_coalesced";
  const Target target = find_target(options.group, inputs, kName);
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return target->allgather_into_tensor_coalesced(to, from,
                                                 make_options<c10d::AllgatherOptions>(options.timeout, mode, kName));
}

Work do_gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "gather";
  const Target target = find_target(options.group, input, kName);
  auto own = make_options<c10d::GatherOptions>(options.timeout, mode, kName);
  own.rootRank = target.group_rank(dst, kName);
  std::vector<std::vector<at::Tensor>> output_lists;
  if (!outputs.empty()) output_lists.push_back(outputs.vec());
  std::vector<at::Tensor> inputs{input};
  return target->gather(output_lists, inputs, own);
}

Work do_scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "scatter";
  const Target target = find_target(options.group, output, kName);
  auto own = make_options<c10d::ScatterOptions>(options.timeout, mode, kName);
  own.rootRank = target.group_rank(src, kName);
  std::vector<std::vector<at::Tensor>> input_lists;
  if (!inputs.empty()) input_lists.push_back(inputs.vec());
  std::vector<at::Tensor> outputs{output};
  return target->scatter(outputs, input_lists, own);
}

Work do_reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options, Mode mode) {
  constexpr const char* kName = "reduce_scatter";
  const Target target = find_target(options.group, output, kName);
  std::vector<std::vector<at::Tensor>> input_lists{inputs.vec()};
  std::vector<at::Tensor> outputs{output};
  return target->reduce_scatter(outputs, input_lists, make_reduction<c10d::ReduceScatterOptions>(options, mode, kName));
}

Work do_reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                              Mode mode) {
  constexpr const char* kName = "reduce_scatter_tensor";
  const Target target = find_target(options.group, output, kName);
  at::Tensor to = output;
  at::Tensor from = input;
  return target->_reduce_scatter_base(to, from, make_reduction<c10d::ReduceScatterOptions>(options, mode, kName));
}

Work do_reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const ReductionOptions& options,
                                        Mode mode) {
  constexpr const char* kName = "reduce_scatter_tensor_coalesced";
  const Target target = find_target(options.group, inputs, kName);
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return target->reduce_scatter_tensor_coalesced(to, from,
                                                 make_reduction<c10d::ReduceScatterOptions>(options, mode, kName));
}

Work do_all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "all_to_all";
  const Target target = find_target(options.group, inputs, kName);
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return target->alltoall(to, from, make_options<c10d::AllToAllOptions>(options.timeout, mode, kName));
}

Work do_all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                          Mode mode) {
  constexpr const char* kName = "all_to_all_single";
  const Target target = find_target(options.group, input, kName);
  at::Tensor to = output;
  at::Tensor from = input;
  std::vector<std::int64_t> output_splits = options.output_splits;
  std::vector<std::int64_t> input_splits = options.input_splits;
  return target->alltoall_base(to, from, output_splits, input_splits,
                               make_options<c10d::AllToAllOptions>(options.timeout, mode, kName));
}

Work do_barrier(const CollectiveOptions& options, Mode mode) {
  constexpr const char* kName = "barrier";
  const Target target = find_host_target(options.group, kName);
  return target->barrier(make_options<c10d::BarrierOptions>(options.timeout, mode, kName));
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

void all_gather_coalesced(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                          const CollectiveOptions& options) {
  do_all_gather_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_gather_coalesced_async(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                                const CollectiveOptions& options) {
  return do_all_gather_coalesced(outputs, inputs, options, Mode::kAsync);
}

void all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options) {
  do_all_gather_into_tensor_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_gather_into_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                            const CollectiveOptions& options) {
  return do_all_gather_into_tensor_coalesced(outputs, inputs, options, Mode::kAsync);
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

void reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const ReductionOptions& options) {
  do_reduce_scatter_tensor_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                           const ReductionOptions& options) {
  return do_reduce_scatter_tensor_coalesced(outputs, inputs, options, Mode::kAsync);
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

void monitored_barrier(const MonitoredBarrierOptions& options) {
  constexpr const char* kName = "monitored_barrier";
  const Target target = find_host_target(options.group, kName);
  if (target->getBackendName() == "nccl") {
    throw ArgumentError(ErrorCode::kUnsupported,
                        fmt::format("{}: backend nccl has none; make the group with cpu:lockstep,cuda:nccl", kName));
  }
  target->monitoredBarrier(make_options<c10d::BarrierOptions>(options.timeout, Mode::kBlocking, kName),
                           options.wait_all_ranks);
}

}  // namespace lockstep
