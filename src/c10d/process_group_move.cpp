// The methods of ProcessGroupLockstep that move data between all ranks.
#include "c10d/collective_call.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

// `output` holds the parts of all ranks, in their order.
comm::AllGather all_gather_args(CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) {
  comm::AllGather args;
  args.type = data_type(input.scalar_type());
  args.input = call.input(input, "input");
  const comm::Piece all = call.output(output, "output");
  call.check_same_dtype(output, "output", input, "input");
  call.check_elements(output, "output", input.numel() * call.world_size(), "world_size times those of `input`");
  for (int rank = 0; rank < call.world_size(); ++rank) {
    args.outputs.push_back({static_cast<std::byte*>(all.data) + rank * args.input.bytes, args.input.bytes});
  }
  return args;
}

comm::AllGather all_gather_list_args(CollectiveCall& call, const std::vector<at::Tensor>& outputs,
                                     const at::Tensor& input) {
  call.check_count(outputs.size(), call.world_size(), "outputs");
  comm::AllGather args;
  args.input = call.input(input, "input");
  args.type = data_type(input.scalar_type());
  for (const at::Tensor& output : outputs) {
    args.outputs.push_back(call.output(output, "outputs"));
    call.check_same_dtype(output, "outputs", input, "input");
  }
  call.check_elements(outputs[call.rank()], "outputs[this rank]", input.numel(), "those of `input`");
  return args;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::broadcast(std::vector<at::Tensor>& tensors,
                                                               const c10d::BroadcastOptions& opts) {
  CollectiveCall call(core_, "broadcast",
                      {c10d::OpType::BROADCAST, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, tensors);
  call.check_root(opts.rootRank);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  comm::Broadcast args;
  args.root = static_cast<int>(opts.rootRank);
  if (rank_ == args.root) {
    // The core only reads it on the root.
    args.data = const_cast<void*>(call.input(tensor, "tensor").data);
  } else {
    args.data = call.output(tensor, "tensor").data;
  }
  args.bytes = byte_size(tensor);
  args.type = data_type(tensor.scalar_type());
  call.submit(args);
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                               std::vector<at::Tensor>& inputs,
                                                               const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core_, "all_gather",
                      {c10d::OpType::ALLGATHER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.check_count(outputs.size(), 1, "outputs");
  call.submit(all_gather_list_args(call, outputs.front(), call.only(inputs, "inputs")));
  return call.work(outputs.front());
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                     const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core_, "all_gather_into_tensor",
                      {c10d::OpType::_ALLGATHER_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, input);
  call.submit(all_gather_args(call, output, input));
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                                         std::vector<at::Tensor>& inputs,
                                                                         const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core_, "all_gather_coalesced",
                      {c10d::OpType::ALLGATHER_COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs);
  call.check_count(outputs.size(), size_, "outputs");
  std::vector<comm::AllGather> all;
  std::vector<at::Tensor> flat;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> column;
    for (const auto& of_rank : outputs) {
      call.check_count(of_rank.size(), inputs.size(), "outputs[rank]");
      column.push_back(of_rank[i]);
    }
    all.push_back(all_gather_list_args(call, column, inputs[i]));
    flat.insert(flat.end(), column.begin(), column.end());
  }
  for (const comm::AllGather& args : all) call.submit(args);
  return call.work(std::move(flat));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core_, "all_gather_into_tensor_coalesced",
                      {c10d::OpType::COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.check_count(inputs.size(), outputs.size(), "inputs");
  std::vector<comm::AllGather> all;
  for (std::size_t i = 0; i < outputs.size(); ++i) all.push_back(all_gather_args(call, outputs[i], inputs[i]));
  for (const comm::AllGather& args : all) call.submit(args);
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::GatherOptions& opts) {
  CollectiveCall call(core_, "gather", {c10d::OpType::GATHER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs);
  call.check_root(opts.rootRank);
  const at::Tensor& input = call.only(inputs, "inputs");
  comm::Gather args;
  args.root = static_cast<int>(opts.rootRank);
  args.input = call.input(input, "input");
  args.type = data_type(input.scalar_type());
  if (rank_ != args.root) {
    if (!outputs.empty()) call.reject("`outputs` is for the root, rank {}; leave it empty elsewhere", args.root);
    call.submit(args);
    return call.work({});
  }
  call.check_count(outputs.size(), 1, "outputs");
  call.check_count(outputs.front().size(), size_, "outputs");
  for (const at::Tensor& output : outputs.front()) {
    args.outputs.push_back(call.output(output, "outputs"));
    call.check_same_dtype(output, "outputs", input, "input");
  }
  call.check_elements(outputs.front()[rank_], "outputs[this rank]", input.numel(), "those of `input`");
  call.submit(args);
  return call.work(outputs.front());
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::scatter(std::vector<at::Tensor>& outputs,
                                                             std::vector<std::vector<at::Tensor>>& inputs,
                                                             const c10d::ScatterOptions& opts) {
  CollectiveCall call(core_, "scatter",
                      {c10d::OpType::SCATTER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs.empty() ? at::TensorList() : inputs.front());
  call.check_root(opts.rootRank);
  const at::Tensor& output = call.only(outputs, "outputs");
  comm::Scatter args;
  args.root = static_cast<int>(opts.rootRank);
  args.output = call.output(output, "output");
  args.type = data_type(output.scalar_type());
  if (rank_ != args.root) {
    if (!inputs.empty()) call.reject("`inputs` is for the root, rank {}; leave it empty elsewhere", args.root);
  } else {
    call.check_count(inputs.size(), 1, "inputs");
    call.check_count(inputs.front().size(), size_, "inputs");
    for (const at::Tensor& input : inputs.front()) {
      args.inputs.push_back(call.input(input, "inputs"));
      call.check_same_dtype(output, "output", input, "inputs");
    }
    call.check_elements(inputs.front()[rank_], "inputs[this rank]", output.numel(), "those of `output`");
  }
  call.submit(args);
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                   std::vector<int64_t>& output_splits,
                                                                   std::vector<int64_t>& input_splits,
                                                                   const c10d::AllToAllOptions& opts) {
  CollectiveCall call(core_, "all_to_all_single",
                      {c10d::OpType::ALLTOALL_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, input);
  comm::AllToAll args;
  const comm::ConstPiece from = call.input(input, "input");
  const comm::Piece to = call.output(output, "output");
  call.check_same_dtype(output, "output", input, "input");
  args.type = data_type(input.scalar_type());
  const auto* source = static_cast<const std::byte*>(from.data);
  for (const std::int64_t elements : call.split_elements(input, "input", input_splits)) {
    const std::size_t bytes = elements * input.element_size();
    args.inputs.push_back({source, bytes});
    source += bytes;
  }
  auto* target = static_cast<std::byte*>(to.data);
  for (const std::int64_t elements : call.split_elements(output, "output", output_splits)) {
    const std::size_t bytes = elements * output.element_size();
    args.outputs.push_back({target, bytes});
    target += bytes;
  }
  call.submit(args);
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::alltoall(std::vector<at::Tensor>& outputs,
                                                              std::vector<at::Tensor>& inputs,
                                                              const c10d::AllToAllOptions& opts) {
  CollectiveCall call(core_, "all_to_all",
                      {c10d::OpType::ALLTOALL, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.check_count(inputs.size(), size_, "inputs");
  call.check_count(outputs.size(), size_, "outputs");
  comm::AllToAll args;
  for (int rank = 0; rank < size_; ++rank) {
    args.inputs.push_back(call.input(inputs[rank], "inputs"));
    args.outputs.push_back(call.output(outputs[rank], "outputs"));
    call.check_same_dtype(outputs[rank], "outputs", inputs[rank], "inputs");
    call.check_same_dtype(inputs[rank], "inputs", inputs[0], "inputs[0]");
  }
  args.type = data_type(inputs[0].scalar_type());
  call.check_elements(outputs[rank_], "outputs[this rank]", inputs[rank_].numel(), "those of inputs[this rank]");
  call.submit(args);
  return call.work(outputs);
}

}  // namespace lockstep
