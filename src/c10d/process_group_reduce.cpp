// The methods of ProcessGroupLockstep that reduce.
#include "c10d/collective_call.h"
#include "c10d/sparse_sum.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

comm::AllReduce all_reduce_args(CollectiveCall& call, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const comm::Piece data = call.in_place(tensor, "tensor");
  const CollectiveCall::Reduction reduction = call.reduction(op, tensor.scalar_type());
  return {data.data,      data.data,    static_cast<std::size_t>(tensor.numel()),
          reduction.type, reduction.op, reduction.factor};
}

// `input` holds the shares of all ranks, in their order.
comm::ReduceScatter reduce_scatter_args(CollectiveCall& call, const at::Tensor& output, const at::Tensor& input,
                                        const c10d::ReduceOp& op) {
  comm::ReduceScatter args;
  args.output = call.output(output, "output");
  const comm::ConstPiece all = call.input(input, "input");
  call.check_same_dtype(output, "output", input, "input");
  call.check_elements(input, "input", output.numel() * call.world_size(), "world_size times those of `output`");
  for (int rank = 0; rank < call.world_size(); ++rank) {
    const auto* data = static_cast<const std::byte*>(all.data) + rank * args.output.bytes;
    args.inputs.push_back({data, args.output.bytes});
  }
  const CollectiveCall::Reduction reduction = call.reduction(op, output.scalar_type());
  args.type = reduction.type;
  args.op = reduction.op;
  args.factor = reduction.factor;
  return args;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allreduce(std::vector<at::Tensor>& tensors,
                                                               const c10d::AllreduceOptions& opts) {
  if (is_sparse_sum(tensors)) {
    sum_sparse(*this, {core_->who(), core_->explanation()}, tensors.front(), opts);
    return c10::make_intrusive<LockstepWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
  }
  CollectiveCall call(core_, "all_reduce",
                      {c10d::OpType::ALLREDUCE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, tensors);
  call.submit(all_reduce_args(call, call.only(tensors, "tensors"), opts.reduceOp));
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                         const c10d::AllreduceCoalescedOptions& opts) {
  CollectiveCall call(core_, "all_reduce_coalesced",
                      {c10d::OpType::ALLREDUCE_COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      tensors);
  std::vector<comm::AllReduce> all;
  all.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) all.push_back(all_reduce_args(call, tensor, opts.reduceOp));
  for (const comm::AllReduce& args : all) call.submit(args);
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce(std::vector<at::Tensor>& tensors,
                                                            const c10d::ReduceOptions& opts) {
  CollectiveCall call(core_, "reduce", {c10d::OpType::REDUCE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      tensors);
  call.check_root(opts.rootRank);
  const at::Tensor& tensor = call.only(tensors, "tensors");
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
  call.submit(args);
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                                    std::vector<std::vector<at::Tensor>>& inputs,
                                                                    const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core_, "reduce_scatter",
                      {c10d::OpType::REDUCE_SCATTER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs.empty() ? at::TensorList() : inputs.front());
  const at::Tensor& output = call.only(outputs, "outputs");
  call.check_count(inputs.size(), 1, "inputs");
  call.check_count(inputs.front().size(), size_, "inputs");
  comm::ReduceScatter args;
  args.output = call.output(output, "output");
  for (const at::Tensor& input : inputs.front()) {
    args.inputs.push_back(call.input(input, "inputs"));
    call.check_same_dtype(output, "output", input, "inputs");
  }
  call.check_elements(inputs.front()[rank_], "inputs[this rank]", output.numel(), "those of `output`");
  const CollectiveCall::Reduction reduction = call.reduction(opts.reduceOp, output.scalar_type());
  args.type = reduction.type;
  args.op = reduction.op;
  args.factor = reduction.factor;
  call.submit(args);
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                          const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core_, "reduce_scatter_tensor",
                      {c10d::OpType::_REDUCE_SCATTER_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      input);
  call.submit(reduce_scatter_args(call, output, input, opts.reduceOp));
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::ReduceScatterOptions& opts) {
  CollectiveCall call(core_, "reduce_scatter_tensor_coalesced",
                      {c10d::OpType::COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.check_count(inputs.size(), outputs.size(), "inputs");
  std::vector<comm::ReduceScatter> all;
  all.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    all.push_back(reduce_scatter_args(call, outputs[i], inputs[i], opts.reduceOp));
  }
  for (const comm::ReduceScatter& args : all) call.submit(args);
  return call.work(outputs);
}

}  // namespace lockstep
