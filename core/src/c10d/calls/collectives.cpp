// The free functions for collectives: each calls the backend of the tensor's device, past LibTorch's dispatcher.
#include "lockstep/c10d/collectives.h"

#include <fmt/format.h>

#include "c10d/backend/backend_call.h"
#include "c10d/world/target.h"
#include "lockstep/c10d/backend_capabilities.h"

namespace lockstep {
namespace {

using Backend = c10d::Backend;
using Op = flight::Op;
using List = std::vector<at::Tensor>;
using Lists = std::vector<List>;

// A call of a backend's method, all but its tensors.
template <typename Options>
struct Call {
  Target target;
  Options options;

  // By value: c10d's methods take references to lists and tensors that are not const.
  template <typename Method, typename... Tensors>
  // NOLINTNEXTLINE(performance-unnecessary-value-param)
  Work run(Op op, Method method, Tensors... tensors) const {
    std::int64_t root = -1;
    if constexpr (requires { options.rootRank; }) root = options.rootRank;
    const BackendCall call(target.group.get(), *target.backend, op, options.asyncOp, root);
    return call.call([&] { return (target.backend.get()->*method)(tensors..., options); }, tensors...);
  }
};

// Finds the backend for `tensors`, one or a list, and makes c10d's options from ours; `fill` sets the remaining ones.
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
  return prepare<c10d::AllreduceOptions>(tensor, options, mode, "all_reduce")
      .run(Op::kAllReduce, &Backend::allreduce, List{tensor});
}

Work do_all_reduce_coalesced(at::TensorList tensors, const ReductionOptions& options, Mode mode) {
  return prepare<c10d::AllreduceCoalescedOptions>(tensors, options, mode, "all_reduce_coalesced")
      .run(Op::kAllReduceCoalesced, &Backend::allreduce_coalesced, tensors.vec());
}

Work do_broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options, Mode mode) {
  return prepare_rooted<c10d::BroadcastOptions>(tensor, src, options, mode, "broadcast")
      .run(Op::kBroadcast, &Backend::broadcast, List{tensor});
}

Work do_reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options, Mode mode) {
  return prepare_rooted<c10d::ReduceOptions>(tensor, dst, options, mode, "reduce")
      .run(Op::kReduce, &Backend::reduce, List{tensor});
}

Work do_all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options, Mode mode) {
  return prepare<c10d::AllgatherOptions>(input, options, mode, "all_gather")
      .run(Op::kAllGather, &Backend::allgather, Lists{outputs.vec()}, List{input});
}

Work do_all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                               Mode mode) {
  return prepare<c10d::AllgatherOptions>(input, options, mode, "all_gather_into_tensor")
      .run(Op::kAllGatherIntoTensor, &Backend::_allgather_base, output, input);
}

Work do_all_gather_coalesced(std::span<const List> outputs, at::TensorList inputs, const CollectiveOptions& options,
                             Mode mode) {
  return prepare<c10d::AllgatherOptions>(inputs, options, mode, "all_gather_coalesced")
      .run(Op::kAllGatherCoalesced, &Backend::allgather_coalesced, Lists(outputs.begin(), outputs.end()), inputs.vec());
}

Work do_all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs,
                                         const CollectiveOptions& options, Mode mode) {
  return prepare<c10d::AllgatherOptions>(inputs, options, mode, "all_gather_into_tensor_coalesced")
      .run(Op::kAllGatherIntoTensorCoalesced, &Backend::allgather_into_tensor_coalesced, outputs.vec(), inputs.vec());
}

// The lists of a rooted method: one on the root, none elsewhere.
Lists on_root(at::TensorList list) {
  return list.empty() ? Lists() : Lists{list.vec()};
}

Work do_gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options, Mode mode) {
  return prepare_rooted<c10d::GatherOptions>(input, dst, options, mode, "gather")
      .run(Op::kGather, &Backend::gather, on_root(outputs), List{input});
}

Work do_scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options, Mode mode) {
  return prepare_rooted<c10d::ScatterOptions>(output, src, options, mode, "scatter")
      .run(Op::kScatter, &Backend::scatter, List{output}, on_root(inputs));
}

Work do_reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options, Mode mode) {
  return prepare<c10d::ReduceScatterOptions>(output, options, mode, "reduce_scatter")
      .run(Op::kReduceScatter, &Backend::reduce_scatter, List{output}, Lists{inputs.vec()});
}

Work do_reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                              Mode mode) {
  return prepare<c10d::ReduceScatterOptions>(output, options, mode, "reduce_scatter_tensor")
      .run(Op::kReduceScatterTensor, &Backend::_reduce_scatter_base, output, input);
}

Work do_reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const ReductionOptions& options,
                                        Mode mode) {
  return prepare<c10d::ReduceScatterOptions>(inputs, options, mode, "reduce_scatter_tensor_coalesced")
      .run(Op::kReduceScatterTensorCoalesced, &Backend::reduce_scatter_tensor_coalesced, outputs.vec(), inputs.vec());
}

Work do_all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, Mode mode) {
  return prepare<c10d::AllToAllOptions>(inputs, options, mode, "all_to_all")
      .run(Op::kAllToAll, &Backend::alltoall, outputs.vec(), inputs.vec());
}

Work do_all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                          Mode mode) {
  return prepare<c10d::AllToAllOptions>(input, options, mode, "all_to_all_single")
      .run(Op::kAllToAllSingle, &Backend::alltoall_base, output, input, options.output_splits, options.input_splits);
}

Call<c10d::BarrierOptions> prepare_barrier(const ProcessGroup& group, std::chrono::milliseconds timeout, Mode mode,
                                           const char* operation) {
  return prepared(group, [&] {
    return Call<c10d::BarrierOptions>{find_host_target(group, operation),
                                      make_options<c10d::BarrierOptions>(timeout, mode, operation)};
  });
}

Work do_barrier(const CollectiveOptions& options, Mode mode) {
  return prepare_barrier(options.group, options.timeout, mode, "barrier").run(Op::kBarrier, &Backend::barrier);
}

}  // namespace

c10d::ReduceOp premul_sum(double factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

void all_reduce(const at::Tensor& tensor, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  do_all_reduce(tensor, options, Mode::kBlocking)->wait();
}
Work all_reduce_async(const at::Tensor& tensor, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_all_reduce(tensor, options, Mode::kAsync);
}

void all_reduce_coalesced(at::TensorList tensors, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  do_all_reduce_coalesced(tensors, options, Mode::kBlocking)->wait();
}
Work all_reduce_coalesced_async(at::TensorList tensors, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_all_reduce_coalesced(tensors, options, Mode::kAsync);
}

void broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_broadcast(tensor, src, options, Mode::kBlocking)->wait();
}
Work broadcast_async(const at::Tensor& tensor, int src, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_broadcast(tensor, src, options, Mode::kAsync);
}

void reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  do_reduce(tensor, dst, options, Mode::kBlocking)->wait();
}
Work reduce_async(const at::Tensor& tensor, int dst, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_reduce(tensor, dst, options, Mode::kAsync);
}

void all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_all_gather(outputs, input, options, Mode::kBlocking)->wait();
}
Work all_gather_async(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options,
                      CallSite site) {
  const CallScope scope(site);
  return do_all_gather(outputs, input, options, Mode::kAsync);
}

void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                            CallSite site) {
  const CallScope scope(site);
  do_all_gather_into_tensor(output, input, options, Mode::kBlocking)->wait();
}
Work all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options,
                                  CallSite site) {
  const CallScope scope(site);
  return do_all_gather_into_tensor(output, input, options, Mode::kAsync);
}

void all_gather_coalesced(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                          const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_all_gather_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_gather_coalesced_async(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                                const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_all_gather_coalesced(outputs, inputs, options, Mode::kAsync);
}

void all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options,
                                      CallSite site) {
  const CallScope scope(site);
  do_all_gather_into_tensor_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_gather_into_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                            const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_all_gather_into_tensor_coalesced(outputs, inputs, options, Mode::kAsync);
}

void gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_gather(input, outputs, dst, options, Mode::kBlocking)->wait();
}
Work gather_async(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options,
                  CallSite site) {
  const CallScope scope(site);
  return do_gather(input, outputs, dst, options, Mode::kAsync);
}

void scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options,
             CallSite site) {
  const CallScope scope(site);
  do_scatter(output, inputs, src, options, Mode::kBlocking)->wait();
}
Work scatter_async(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options,
                   CallSite site) {
  const CallScope scope(site);
  return do_scatter(output, inputs, src, options, Mode::kAsync);
}

void reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  do_reduce_scatter(output, inputs, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_async(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options,
                          CallSite site) {
  const CallScope scope(site);
  return do_reduce_scatter(output, inputs, options, Mode::kAsync);
}

void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                           CallSite site) {
  const CallScope scope(site);
  do_reduce_scatter_tensor(output, input, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options,
                                 CallSite site) {
  const CallScope scope(site);
  return do_reduce_scatter_tensor(output, input, options, Mode::kAsync);
}

void reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const ReductionOptions& options,
                                     CallSite site) {
  const CallScope scope(site);
  do_reduce_scatter_tensor_coalesced(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work reduce_scatter_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                           const ReductionOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_reduce_scatter_tensor_coalesced(outputs, inputs, options, Mode::kAsync);
}

void all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_all_to_all(outputs, inputs, options, Mode::kBlocking)->wait();
}
Work all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_all_to_all(outputs, inputs, options, Mode::kAsync);
}

void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                       CallSite site) {
  const CallScope scope(site);
  do_all_to_all_single(output, input, options, Mode::kBlocking)->wait();
}
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options,
                             CallSite site) {
  const CallScope scope(site);
  return do_all_to_all_single(output, input, options, Mode::kAsync);
}

void barrier(const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  do_barrier(options, Mode::kBlocking)->wait();
}
Work barrier_async(const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  return do_barrier(options, Mode::kAsync);
}

void monitored_barrier(const MonitoredBarrierOptions& options, CallSite site) {
  const CallScope scope(site);
  constexpr const char* kName = "monitored_barrier";
  const auto call = prepare_barrier(options.group, options.timeout, Mode::kBlocking, kName);
  c10d::Backend& backend = *call.target.backend;
  if (!capabilities_of(backend).has_monitored_barrier()) {
    const std::string name = backend.getBackendName();
    throw ArgumentError(
        ErrorCode::kUnsupported,
        fmt::format("{}: backend {} has none; make the group with cpu:lockstep,cuda:{}", kName, name, name));
  }
  const BackendCall through(call.target.group.get(), backend, Op::kMonitoredBarrier, /*async=*/false);
  through.call([&] {
    backend.monitoredBarrier(call.options, options.wait_all_ranks);
    return Work();
  });
}

}  // namespace lockstep
