// The methods of ProcessGroupMpi that reduce.
#include <c10/core/GradMode.h>

#include <span>

#include "c10d/backend/method_checks.h"
#include "c10d/backend/sparse_sum.h"
#include "lockstep/reduce/reduce.h"
#include "mpi/mpi_runtime.h"
#include "mpi/process_group_mpi.h"

namespace lockstep {
namespace {

using Reduction = CallChecks::Reduction;

// MPI lacks PREMUL_SUM and AVG: the first multiplies inputs before a sum, the second divides the result after it.
void multiply_first(const Reduction& reduction, const at::Tensor& memory) {
  const c10::AutoGradMode no_grad(false);
  if (reduction.op == comm::ReduceOp::kPremulSum) memory.mul_(reduction.factor);
}

// Uses the engine's kernel, which knows all dtypes.
void divide_after(MpiCall& call, const Reduction& reduction, const at::Tensor& memory) {
  if (reduction.op != comm::ReduceOp::kAvg) return;
  call.after([memory, type = reduction.type, size = static_cast<std::size_t>(call.group_size())] {
    std::byte* const sums = static_cast<std::byte*>(mpi_address(memory));
    const std::byte* const inputs[] = {sums};
    comm::reduce({type, comm::ReduceOp::kAvg, 1.0, size}, inputs, std::span(&sums, 1), memory.numel());
  });
}

// The memory that MPI reduces: that of the tensor, or a copy as 64-bit integers for AVG of narrower ones, whose sum
// could wrap. On return `reduction` has the type of the result.
at::Tensor operand(MpiCall& call, Reduction& reduction, const at::Tensor& memory) {
  const bool integers = comm::is_supported(reduction.type, comm::ReduceOp::kBand);
  if (reduction.op != comm::ReduceOp::kAvg || !integers || memory.element_size() == 8) return memory;
  reduction.type = comm::DataType::kInt64;
  return call.input(memory.to(at::kLong), "tensor");
}

// The operand for an output.
at::Tensor result(MpiCall& call, Reduction& reduction, const at::Tensor& memory) {
  const at::Tensor sum = operand(call, reduction, memory);
  divide_after(call, reduction, sum);
  if (!sum.is_same(memory)) call.after([memory, sum] { memory.copy_(sum); });
  return sum;
}

// A copy if it will be multiplied: the caller's tensor must not change.
at::Tensor reduce_input(MpiCall& call, const Reduction& reduction, const at::Tensor& tensor, const char* name) {
  at::Tensor memory = call.input(tensor, name);
  if (reduction.op != comm::ReduceOp::kPremulSum) return memory;
  memory = call.input(memory.clone(), name);
  multiply_first(reduction, memory);
  return memory;
}

struct Reduced {
  at::Tensor from;
  at::Tensor to;
  Reduction reduction;
};

void start_all_reduces(MpiCall& call, const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op) {
  std::vector<Reduced> all;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor memory = call.in_place(tensor, "tensor");
    Reduction reduction = call.reduction(op, tensor.scalar_type());
    static_cast<void>(call.count(memory.numel()));
    all.push_back({memory, memory, reduction});
  }
  for (Reduced& one : all) {
    multiply_first(one.reduction, one.to);
    one.to = result(call, one.reduction, one.to);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const auto [type, own_op] = runtime.reduction(one.reduction.type, one.reduction.op);
      return MPI_Iallreduce(MPI_IN_PLACE, mpi_address(one.to), static_cast<int>(one.to.numel()), type, own_op, comm,
                            request);
    });
  }
}

// From inputs[i] to outputs[i].
void start_reduce_scatters(MpiCall& call, at::TensorList outputs, at::TensorList inputs, const c10d::ReduceOp& op) {
  std::vector<Reduced> all;
  for (const at::Tensor& output : outputs) {
    all.push_back({{}, call.output(output, "output"), call.reduction(op, output.scalar_type())});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    check_reduce_scatter_tensor(call, outputs[i], inputs[i]);
    all[i].from = reduce_input(call, all[i].reduction, inputs[i], "input");
    static_cast<void>(call.count(all[i].to.numel()));
  }
  for (Reduced& one : all) {
    Reduction of_input = one.reduction;
    one.from = operand(call, of_input, one.from);
    one.to = result(call, one.reduction, one.to);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const auto [type, own_op] = runtime.reduction(one.reduction.type, one.reduction.op);
      return MPI_Ireduce_scatter_block(mpi_address(one.from), mpi_address(one.to), static_cast<int>(one.to.numel()),
                                       type, own_op, comm, request);
    });
  }
}

}  // namespace

// The sum itself is several collectives.
void ProcessGroupMpi::check_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  collective("all_reduce", options(c10d::OpType::ALLREDUCE, opts), [&](MpiCall& call) {
    check_sparse_sum(call, tensor, opts);
    return WorkPtr();
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (is_sparse_sum(tensors)) {
    check_sparse(tensors.front(), opts);
    sum_sparse(*this, {group_->who(), explain_ranks(membership().global_ranks)}, tensors.front(), opts);
    return c10::make_intrusive<MpiWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
  }
  return collective("all_reduce", options(c10d::OpType::ALLREDUCE, opts), [&](MpiCall& call) {
    static_cast<void>(call.only(tensors, "tensors"));
    start_all_reduces(call, tensors, opts.reduceOp);
    return call.work(tensors);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allreduce_coalesced(Tensors& tensors,
                                                              const c10d::AllreduceCoalescedOptions& opts) {
  return collective("all_reduce_coalesced", options(c10d::OpType::ALLREDUCE_COALESCED, opts), [&](MpiCall& call) {
    start_all_reduces(call, tensors, opts.reduceOp);
    return call.work(tensors);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return collective("reduce", options(c10d::OpType::REDUCE, opts), [&](MpiCall& call) {
    const at::Tensor& tensor = check_reduce(call, tensors, opts);
    const int root = static_cast<int>(opts.rootRank);
    const bool here = rank_ == root;
    call.check_writable(tensor, "tensor");  // elsewhere too: if only the root refused it, the others would wait
    Reduction reduction = call.reduction(opts.reduceOp, tensor.scalar_type());
    at::Tensor memory = here ? call.in_place(tensor, "tensor") : reduce_input(call, reduction, tensor, "tensor");
    const int count = call.count(memory.numel());
    if (here) multiply_first(reduction, memory);
    memory = here ? result(call, reduction, memory) : operand(call, reduction, memory);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
      return MPI_Ireduce(here ? MPI_IN_PLACE : mpi_address(memory), here ? mpi_address(memory) : nullptr, count, type,
                         own_op, root, comm, request);
    });
    return call.work(tensors);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  return collective("reduce_scatter", options(c10d::OpType::REDUCE_SCATTER, opts), [&](MpiCall& call) {
    const at::Tensor& output = check_reduce_scatter(call, outputs, inputs);
    at::Tensor to = call.output(output, "output");
    at::Tensor from = call.flat_input(inputs.front(), "inputs");
    check_inputs_of_ranks(call, inputs.front(), output, rank_);
    Reduction reduction = call.reduction(opts.reduceOp, output.scalar_type());
    const MpiCall::Layout& parts = call.keep(call.layout(inputs.front()));
    multiply_first(reduction, from);
    Reduction of_input = reduction;
    from = operand(call, of_input, from);
    to = result(call, reduction, to);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const auto [type, own_op] = runtime.reduction(reduction.type, reduction.op);
      return MPI_Ireduce_scatter(mpi_address(from), mpi_address(to), parts.counts.data(), type, own_op, comm, request);
    });
    return call.work(outputs);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::ReduceScatterOptions& opts) {
  return collective("reduce_scatter_tensor", options(c10d::OpType::_REDUCE_SCATTER_BASE, opts), [&](MpiCall& call) {
    start_reduce_scatters(call, output, input, opts.reduceOp);
    return call.work({output});
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::ReduceScatterOptions& opts) {
  return collective("reduce_scatter_tensor_coalesced", options(c10d::OpType::COALESCED, opts), [&](MpiCall& call) {
    check_coalesced(call, outputs, inputs);
    start_reduce_scatters(call, outputs, inputs, opts.reduceOp);
    return call.work(outputs);
  });
}

}  // namespace lockstep
