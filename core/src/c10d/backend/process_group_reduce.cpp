// The methods of ProcessGroupLockstep that reduce.
#include <span>

#include "c10d/backend/collective_call.h"
#include "c10d/backend/method_checks.h"
#include "c10d/backend/sparse_sum.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep {
namespace {

// For several tensors of this rank: reduces them here first; each of them gets the result.
comm::Piece reduce_own(CollectiveCall& call, const std::vector<at::Tensor>& tensors,
                       const CollectiveCall::Reduction& reduction) {
  const bool mean = reduction.op == comm::ReduceOp::kAvg;
  if (mean && comm::is_supported(reduction.type, comm::ReduceOp::kBand)) {
    call.reject("AVG of integers is not defined for several tensors of a rank, as their own sum can wrap");
  }
  // Only sums here: the engine divides or multiplies.
  const bool sums = mean || reduction.op == comm::ReduceOp::kPremulSum;
  std::vector<const std::byte*> inputs;
  inputs.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    inputs.push_back(static_cast<const std::byte*>(call.input(tensor, "tensors").data));
  }
  const at::Tensor result = call.make_operand(tensors[0], tensors[0].numel());
  auto* const data = static_cast<std::byte*>(result.mutable_data_ptr());
  comm::reduce({reduction.type, sums ? comm::ReduceOp::kSum : reduction.op}, inputs, std::span(&data, 1),
               static_cast<std::size_t>(result.numel()));
  for (const at::Tensor& tensor : tensors) call.copy_later(result.view(tensor.sizes()), tensor, "tensors");
  return {data, result.nbytes()};
}

comm::AllReduce all_reduce_args(CollectiveCall& call, const std::vector<at::Tensor>& tensors,
                                const c10d::ReduceOp& op) {
  call.check_alike(tensors, "tensors", "requires non-empty tensor list");
  const comm::Piece first = tensors.size() == 1 ? call.in_place(tensors[0], "tensor") : comm::Piece();
  const CollectiveCall::Reduction reduction = call.reduction(op, tensors[0].scalar_type());
  const comm::Piece data = tensors.size() == 1 ? first : reduce_own(call, tensors, reduction);
  return {data.data,      data.data,    static_cast<std::size_t>(tensors[0].numel()),
          reduction.type, reduction.op, reduction.factor};
}

void set_reduction(comm::ReduceScatter& args, const CollectiveCall::Reduction& reduction) {
  args.type = reduction.type;
  args.op = reduction.op;
  args.factor = reduction.factor;
}

// From inputs[i], which holds the slices of all ranks in their order, to outputs[i].
std::vector<comm::ReduceScatter> reduce_scatter_args(CollectiveCall& call, at::TensorList outputs,
                                                     at::TensorList inputs, const c10d::ReduceOp& op) {
  std::vector<comm::ReduceScatter> all(outputs.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].output = call.output(outputs[i], "output");
  for (std::size_t i = 0; i < all.size(); ++i) {
    comm::ReduceScatter& args = all[i];
    check_reduce_scatter_tensor(call, outputs[i], inputs[i]);
    set_reduction(args, call.reduction(op, outputs[i].scalar_type()));
    const std::size_t share = args.output.bytes;
    const comm::ConstPiece input = call.input(inputs[i], "input", args.output, call.rank() * share);
    for (int rank = 0; rank < call.group_size(); ++rank) {
      args.inputs.push_back({static_cast<const std::byte*>(input.data) + rank * share, share});
    }
  }
  return all;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allreduce(std::vector<at::Tensor>& tensors,
                                                               const c10d::AllreduceOptions& opts) {
  CollectiveCall call(core(), "all_reduce",
                      {c10d::OpType::ALLREDUCE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, tensors);
  if (is_sparse_sum(tensors)) {
    call.prepare([&] { check_sparse_sum(call, tensors.front(), opts); });
    sum_sparse(*this, {core()->who(), explain_ranks(membership().global_ranks)}, tensors.front(), opts);
    return c10::make_intrusive<LockstepWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
  }
  call.collective([&] { return all_reduce_args(call, tensors, opts.reduceOp); });
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                         const c10d::AllreduceCoalescedOptions& opts) {
  CollectiveCall call(core(), "all_reduce_coalesced",
                      {c10d::OpType::ALLREDUCE_COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      tensors);
  const auto make = [&] {
    std::vector<comm::AllReduce> all;
    all.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) all.push_back(all_reduce_args(call, {tensor}, opts.reduceOp));
    return all;
  };
  call.collective(make, tensors.size());
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce(std::vector<at::Tensor>& tensors,
                                                            const c10d::ReduceOptions& opts) {
  CollectiveCall call(
      core(), "reduce",
      {c10d::OpType::REDUCE, blocking(opts.asyncOp), timeout_or_default(opts.timeout), static_cast<int>(opts.rootRank)},
      tensors);
  call.collective([&] {
    const at::Tensor& tensor = check_reduce(call, tensors, opts);
    comm::Reduce args;
    if (rank_ == opts.rootRank) {
      const comm::Piece data = call.in_place(tensor, "tensor");
      args.input = args.output = data.data;
    } else {
      args.input = call.input(tensor, "tensor").data;
    }
    const CollectiveCall::Reduction reduction = call.reduction(opts.reduceOp, tensor.scalar_type());
    args.count = static_cast<std::size_t>(tensor.numel());
    args.type = reduction.type;
    args.op = reduction.op;
    args.factor = reduction.factor;
    args.root = static_cast<int>(opts.rootRank);
    return args;
  });
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                                    std::vector<std::vector<at::Tensor>>& inputs,
                                                                    const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core(), "reduce_scatter",
                      {c10d::OpType::REDUCE_SCATTER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs.empty() ? at::TensorList() : inputs.front());
  call.collective([&] {
    const at::Tensor& output = check_reduce_scatter(call, outputs, inputs);
    comm::ReduceScatter args;
    args.output = call.output(output, "output");
    for (int rank = 0; rank < size_; ++rank) {
      const at::Tensor& input = inputs.front()[rank];
      args.inputs.push_back(call.input(input, "inputs", rank == rank_ ? args.output : comm::Piece()));
    }
    check_inputs_of_ranks(call, inputs.front(), output, rank_);
    set_reduction(args, call.reduction(opts.reduceOp, output.scalar_type()));
    return args;
  });
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                          const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core(), "reduce_scatter_tensor",
                      {c10d::OpType::_REDUCE_SCATTER_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      input);
  call.collective([&] { return reduce_scatter_args(call, output, input, opts.reduceOp); });
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core(), "reduce_scatter_tensor_coalesced",
                      {c10d::OpType::COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  const auto make = [&] {
    check_coalesced(call, outputs, inputs);
    return reduce_scatter_args(call, outputs, inputs, opts.reduceOp);
  };
  call.collective(make, outputs.size());
  return call.work(outputs);
}

}  // namespace lockstep
