// The methods of ProcessGroupMpi that reduce.
#include <c10/core/GradMode.h>

#include <span>

#include "c10d/sparse_sum.h"
#include "lockstep/comm/collective/reduce.h"
#include "mpi/mpi_runtime.h"
#include "mpi/process_group_mpi.h"

namespace lockstep {
namespace {

using Reduction = CallChecks::Reduction;

// What MPI has no word for: PREMUL_SUM multiplies what goes in, AVG divides what comes out.
void multiply_first(const Reduction& reduction, const at::Tensor& memory) {
  const c10::AutoGradMode no_grad(false);
  if (reduction.op == comm::ReduceOp::kPremulSum) memory.mul_(reduction.factor);
}

// By the engine's own kernel, which knows all dtypes.
void divide_after(MpiCall& call, const Reduction& reduction, const at::Tensor& memory) {
  if (reduction.op != comm::ReduceOp::kAvg) return;
  call.after([memory, type = reduction.type, world = static_cast<std::size_t>(call.world_size())] {
    std::byte* const sums = static_cast<std::byte*>(mpi_address(memory));
    const std::byte* const inputs[] = {sums};
    comm::reduce({type, comm::ReduceOp::kAvg, 1.0, world}, inputs, std::span(&sums, 1), memory.numel());
  });
}

// A copy where it will be multiplied, which must not show in the caller's tensor.
at::Tensor reduce_input(MpiCall& call, const Reduction& reduction, const at::Tensor& output, const at::Tensor& tensor,
                        const char* name) {
  at::Tensor memory = call.input_beside(output, tensor, name);
  if (reduction.op != comm::ReduceOp::kPremulSum) return memory;
  memory = call.input(memory.clone(), name);
  multiply_first(reduction, memory);
  return memory;
}

void start_all_reduce(MpiCall& call, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::Tensor memory = call.in_place(tensor, "tensor");
  const Reduction reduction = call.reduction(op, tensor.scalar_type());
  const int count = call.count(memory.numel());
  multiply_first(reduction, memory);
  divide_after(call, reduction, memory);
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
    return MPI_Iallreduce(MPI_IN_PLACE, mpi_address(memory), count, type, own_op, comm, request);
  });
}

void start_reduce_scatter(MpiCall& call, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) {
  const at::Tensor to = call.output(output, "output");
  call.check_readable(input, "input");
  call.check_same_dtype(output, "output", input, "input");
  call.check_elements(input, "input", output.numel() * call.world_size(), "world_size times those of `output`");
  const Reduction reduction = call.reduction(op, output.scalar_type());
  const at::Tensor from = reduce_input(call, reduction, to, input, "input");
  const int count = call.count(to.numel());
  divide_after(call, reduction, to);
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
    return MPI_Ireduce_scatter_block(mpi_address(from), mpi_address(to), count, type, own_op, comm, request);
  });
}

}  // namespace

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (is_sparse_sum(tensors)) {
    sum_sparse(*this, {group_->who(), explain_ranks(request_.global_ranks)}, tensors.front(), opts);
    return c10::make_intrusive<MpiWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
  }
  MpiCall call(group_, "all_reduce", rank_, options(c10d::OpType::ALLREDUCE, opts));
  start_all_reduce(call, call.only(tensors, "tensors"), opts.reduceOp);
  return call.work(tensors);
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allreduce_coalesced(Tensors& tensors,
                                                              const c10d::AllreduceCoalescedOptions& opts) {
  MpiCall call(group_, "all_reduce_coalesced", rank_, options(c10d::OpType::ALLREDUCE_COALESCED, opts));
  for (const at::Tensor& tensor : tensors) {
    call.check_writable(tensor, "tensors");
    static_cast<void>(call.reduction(opts.reduceOp, tensor.scalar_type()));
  }
  for (const at::Tensor& tensor : tensors) start_all_reduce(call, tensor, opts.reduceOp);
  return call.work(tensors);
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  MpiCall call(group_, "reduce", rank_, options(c10d::OpType::REDUCE, opts));
  call.check_root(opts.rootRank);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  const int root = static_cast<int>(opts.rootRank);
  const bool here = rank_ == root;
  call.check_readable(tensor, "tensor");
  const Reduction reduction = call.reduction(opts.reduceOp, tensor.scalar_type());
  const at::Tensor memory =
      here ? call.in_place(tensor, "tensor") : reduce_input(call, reduction, at::empty({0}), tensor, "tensor");
  const int count = call.count(memory.numel());
  if (here) {
    multiply_first(reduction, memory);
    divide_after(call, reduction, memory);
  }
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
    return MPI_Ireduce(here ? MPI_IN_PLACE : mpi_address(memory), here ? mpi_address(memory) : nullptr, count, type,
                       own_op, root, comm, request);
  });
  return call.work(tensors);
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  MpiCall call(group_, "reduce_scatter", rank_, options(c10d::OpType::REDUCE_SCATTER, opts));
  const at::Tensor& output = call.only(outputs, "outputs");
  call.check_count(inputs.size(), 1, "inputs");
  call.check_count(inputs.front().size(), size_, "inputs");
  const at::Tensor to = call.output(output, "output");
  const at::Tensor from = call.flat_input(inputs.front(), "inputs");
  call.check_same_dtype(output, "output", from, "inputs");
  call.check_elements(inputs.front()[rank_], "inputs[this rank]", output.numel(), "those of `output`");
  const Reduction reduction = call.reduction(opts.reduceOp, output.scalar_type());
  const MpiCall::Layout& parts = call.keep(call.layout(inputs.front()));
  multiply_first(reduction, from);
  divide_after(call, reduction, to);
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
    return MPI_Ireduce_scatter(mpi_address(from), mpi_address(to), parts.counts.data(), type, own_op, comm, request);
  });
  return call.work(outputs);
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::ReduceScatterOptions& opts) {
  MpiCall call(group_, "reduce_scatter_tensor", rank_, options(c10d::OpType::_REDUCE_SCATTER_BASE, opts));
  start_reduce_scatter(call, output, input, opts.reduceOp);
  return call.work({output});
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::ReduceScatterOptions& opts) {
  MpiCall call(group_, "reduce_scatter_tensor_coalesced", rank_, options(c10d::OpType::COALESCED, opts));
  call.check_count(inputs.size(), outputs.size(), "inputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    start_reduce_scatter(call, outputs[i], inputs[i], opts.reduceOp);
  }
  return call.work(outputs);
}

}  // namespace lockstep
