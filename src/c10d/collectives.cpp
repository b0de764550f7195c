// The free functions: find the backend of the tensor's device and call it, past LibTorch's dispatcher.
#include "lockstep/c10d/collectives.h"

#include <fmt/format.h>

#include "c10d/target.h"

namespace lockstep {
namespace {

template <typename Options>
struct Call {
  Target target;
  Options options;

  c10d::Backend* operator->() const { return target.backend.get(); }
};

// Finds the backend for `tensors`, one or a list, and makes c10d's options of ours; `fill` adds what they have besides.
template <typename Options, typename Tensors, typename OwnOptions, typename Fill>
Call<Options> prepare(const Tensors& tensors, const OwnOptions& from, Mode mode, const char* operation,
                      const Fill& fill) {
  return prepared(from.group, [&] {
    Call<Options> call{find_target(from.group, tensors, operation),
                       make_options<Options>(from.timeout, mode, operation)};
    if constexpr (requires { from.op; }) call.options.reduceOp = from.op;
    fill(call);
    return call;
  });
}

template <typename Options, typename Tensors, typename OwnOptions>
Call<Options> prepare(const Tensors& tensors, const OwnOptions& from, Mode mode, const char* operation) {
  return prepare<Options>(tensors, from, mode, operation, [](const Call<Options>&) {});
}

template <typename Options, typename OwnOptions>
Call<Options> prepare_rooted(const at::Tensor& tensor, int root, const OwnOptions& from, Mode mode,
                             const char* operation) {
  return prepare<Options>(tensor, from, mode, operation, [&](Call<Options>& call) {
    call.options.rootRank = call.target.group_rank(root, operation);
  });
}

Work do_all_reduce(const at::Tensor& tensor, const ReductionOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllreduceOptions>(tensor, options, mode, "all_reduce");
  std::vector<at::Tensor> tensors{tensor};
  return call->allreduce(tensors, call.options);
}

Work do_all_reduce_coalesced(at::TensorList list, const ReductionOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllreduceCoalescedOptions>(list, options, mode, "all_reduce_coalesced");
  std::vector<at::Tensor> tensors = list.vec();
  return call->allreduce_coalesced(tensors, call.options);
}

Work do_broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options, Mode mode) {
  const auto call = prepare_rooted<c10d::BroadcastOptions>(tensor, src, options, mode, "broadcast");
  std::vector<at::Tensor> tensors{tensor};
  return call->broadcast(tensors, call.options);
}

Work do_reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options, Mode mode) {
  const auto call = prepare_rooted<c10d::ReduceOptions>(tensor, dst, options, mode, "reduce");
  std::vector<at::Tensor> tensors{tensor};
  return call->reduce(tensors, call.options);
}

Work do_all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllgatherOptions>(input, options, mode, "all_gather");
  std::vector<std::vector<at::Tensor>> output_lists{outputs.vec()};
  std::vector<at::Tensor> inputs{input};
  return call->allgather(output_lists, inputs, call.options);
}

Work do_all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                               Mode mode) {
  const auto call = prepare<c10d::AllgatherOptions>(input, options, mode, "all_gather_into_tensor");
  at::Tensor to = output;
  at::Tensor from = input;
  return call->_allgather_base(to, from, call.options);
}

Work do_all_gather_coalesced(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                             const CollectiveOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllgatherOptions>(inputs, options, mode, "all_gather_coalesced");
  std::vector<std::vector<at::Tensor>> to(outputs.begin(), outputs.end());
  std::vector<at::Tensor> from = inputs.vec();
  return call->allgather_coalesced(to, from, call.options);
}

Work do_all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs,
                                         const CollectiveOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllgatherOptions>(inputs, options, mode, "all_gather_into_tensor_coalesced");
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return call->allgather_into_tensor_coalesced(to, from, call.options);
}

Work do_gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options, Mode mode) {
  const auto call = prepare_rooted<c10d::GatherOptions>(input, dst, options, mode, "gather");
  std::vector<std::vector<at::Tensor>> output_lists;
  if (!outputs.empty()) output_lists.push_back(outputs.vec());
  std::vector<at::Tensor> inputs{input};
  return call->gather(output_lists, inputs, call.options);
}

Work do_scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options, Mode mode) {
  const auto call = prepare_rooted<c10d::ScatterOptions>(output, src, options, mode, "scatter");
  std::vector<std::vector<at::Tensor>> input_lists;
  if (!inputs.empty()) input_lists.push_back(inputs.vec());
  std::vector<at::Tensor> outputs{output};
  return call->scatter(outputs, input_lists, call.options);
}

Work do_reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options, Mode mode) {
  const auto call = prepare<c10d::ReduceScatterOptions>(output, options, mode, "reduce_scatter");
  std::vector<at::Tensor> outputs{output};
  std::vector<std::vector<at::Tensor>> input_lists{inputs.vec()};
  return call->reduce_scatter(outputs, input_lists, call.options);
}

Work do_reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                              Mode mode) {
  const auto call = prepare<c10d::ReduceScatterOptions>(output, options, mode, "reduce_scatter_tensor");
  at::Tensor to = output;
  at::Tensor from = input;
  return call->_reduce_scatter_base(to, from, call.options);
}

Work do_reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const ReductionOptions& options,
                                        Mode mode) {
  const auto call = prepare<c10d::ReduceScatterOptions>(inputs, options, mode, "reduce_scatter_tensor_coalesced");
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return call->reduce_scatter_tensor_coalesced(to, from, call.options);
}

Work do_all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, Mode mode) {
  const auto call = prepare<c10d::AllToAllOptions>(inputs, options, mode, "all_to_all");
  std::vector<at::Tensor> to = outputs.vec();
  std::vector<at::Tensor> from = inputs.vec();
  return call->alltoall(to, from, call.options);
}

Work do_all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                          Mode mode) {
  const auto call = prepare<c10d::AllToAllOptions>(input, options, mode, "all_to_all_single");
  at::Tensor to = output;
  at::Tensor from = input;
  std::vector<std::int64_t> output_splits = options.output_splits;
  std::vector<std::int64_t> input_splits = options.input_splits;
  return call->alltoall_base(to, from, output_splits, input_splits, call.options);
}

Call<c10d::BarrierOptions> prepare_barrier(const ProcessGroup& group, std::chrono::milliseconds timeout, Mode mode,
                                           const char* operation) {
  return prepared(group, [&] {
    return Call<c10d::BarrierOptions>{find_host_target(group, operation),
                                      make_options<c10d::BarrierOptions>(timeout, mode, operation)};
  });
}

Work do_barrier(const CollectiveOptions& options, Mode mode) {
  const auto call = prepare_barrier(options.group, options.timeout, mode, "barrier");
  return call->barrier(call.options);
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
  const auto call = prepare_barrier(options.group, options.timeout, Mode::kBlocking, kName);
  if (call->getBackendName() == "nccl") {
    throw ArgumentError(ErrorCode::kUnsupported,
                        fmt::format("{}: backend nccl has none; make the group with cpu:lockstep,cuda:nccl", kName));
  }
  call->monitoredBarrier(call.options, options.wait_all_ranks);
}

}  // namespace lockstep
