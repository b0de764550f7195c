// The methods of ProcessGroupLockstep that move data between all ranks.
#include "c10d/backend/collective_call.h"
#include "c10d/backend/method_checks.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

// From inputs[i] to outputs[i], which holds the slices of all ranks in their order.
std::vector<comm::AllGather> all_gather_args(CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  std::vector<comm::AllGather> all(outputs.size());
  std::vector<std::byte*> places;
  for (const at::Tensor& output : outputs) {
    places.push_back(static_cast<std::byte*>(call.output(output, "output").data));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    comm::AllGather& args = all[i];
    check_all_gather_into_tensor(call, outputs[i], inputs[i]);
    for (int rank = 0; rank < call.group_size(); ++rank) {
      args.outputs.push_back({places[i] + rank * byte_size(inputs[i]), byte_size(inputs[i])});
    }
    args.type = data_type(inputs[i].scalar_type());
    args.input = call.input(inputs[i], "input", args.outputs[call.rank()]);
  }
  return all;
}

// From inputs[i] to columns[i], which has one tensor per rank.
std::vector<comm::AllGather> all_gather_list_args(CollectiveCall& call,
                                                  const std::vector<std::vector<at::Tensor>>& columns,
                                                  at::TensorList inputs) {
  std::vector<comm::AllGather> all(columns.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const at::Tensor& output : columns[i]) all[i].outputs.push_back(call.output(output, "outputs"));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    comm::AllGather& args = all[i];
    call.check_readable(inputs[i], "input");
    check_outputs_of_ranks(call, columns[i], inputs[i], call.rank());
    args.type = data_type(inputs[i].scalar_type());
    args.input = call.input(inputs[i], "input", args.outputs[call.rank()]);
  }
  return all;
}

// Sends several inputs of this rank as one. Each list of outputs gets input i of rank r at r * (number of inputs) + i.
comm::AllGather gather_several(CollectiveCall& call, const std::vector<std::vector<at::Tensor>>& outputs,
                               const std::vector<at::Tensor>& inputs) {
  call.check_alike(inputs, "inputs", "requires non-empty input tensor list");
  const std::int64_t elements = inputs[0].numel();
  const auto count = static_cast<std::int64_t>(inputs.size());
  const at::Tensor mine = call.make_operand(inputs[0], count * elements);
  const at::Tensor everything = call.make_operand(inputs[0], call.group_size() * count * elements);
  for (std::int64_t i = 0; i < count; ++i) {
    call.check_readable(inputs[i], "inputs");
    copy_elements(mine.narrow(0, i * elements, elements).view(inputs[i].sizes()), inputs[i]);
  }
  for (const std::vector<at::Tensor>& list : outputs) {
    call.check_count(list.size(), call.group_size() * count, "outputs", "invalid output tensor list");
    for (std::size_t i = 0; i < list.size(); ++i) {
      call.check_writable(list[i], "outputs");
      call.check_same_dtype(list[i], "outputs", inputs[0], "inputs", i);
      call.check_elements(list[i], "outputs", elements, "those of each of `inputs`");
      const at::Tensor part = everything.narrow(0, static_cast<std::int64_t>(i) * elements, elements);
      call.copy_later(part.view(list[i].sizes()), list[i], "outputs");
    }
  }
  comm::AllGather args;
  args.type = data_type(inputs[0].scalar_type());
  args.input = {mine.const_data_ptr(), mine.nbytes()};
  auto* const place = static_cast<std::byte*>(everything.mutable_data_ptr());
  for (int rank = 0; rank < call.group_size(); ++rank)
    args.outputs.push_back({place + rank * mine.nbytes(), mine.nbytes()});
  return args;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::broadcast(std::vector<at::Tensor>& tensors,
                                                               const c10d::BroadcastOptions& opts) {
  CollectiveCall call(core(), "broadcast",
                      {c10d::OpType::BROADCAST, blocking(opts.asyncOp), timeout_or_default(opts.timeout),
                       static_cast<int>(opts.rootRank)},
                      tensors);
  call.collective([&] {
    call.check_root(opts.rootRank);
    call.check_root_tensor(opts.rootTensor, tensors.size());
    call.check_alike(tensors, "tensors", "requires non-empty tensor list");
    const at::Tensor& tensor = tensors[opts.rootTensor];
    comm::Broadcast args;
    args.root = static_cast<int>(opts.rootRank);
    if (rank_ == args.root) {
      // On the root the engine only reads it.
      args.data = const_cast<void*>(call.input(tensor, "tensor").data);
    } else {
      args.data = call.output(tensor, "tensor").data;
    }
    args.bytes = byte_size(tensor);
    args.type = data_type(tensor.scalar_type());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (static_cast<std::int64_t>(i) != opts.rootTensor) call.copy_later(tensor, tensors[i], "tensors");
    }
    return args;
  });
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                               std::vector<at::Tensor>& inputs,
                                                               const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core(), "all_gather",
                      {c10d::OpType::ALLGATHER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.collective([&] {
    check_all_gather(call, outputs, inputs);
    if (inputs.size() > 1) return gather_several(call, outputs, inputs);
    return std::move(all_gather_list_args(call, outputs, inputs).front());
  });
  if (outputs.size() == 1) return call.work(outputs.front());
  std::vector<at::Tensor> flat;
  for (const auto& list : outputs) flat.insert(flat.end(), list.begin(), list.end());
  return call.work(std::move(flat));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                     const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core(), "all_gather_into_tensor",
                      {c10d::OpType::_ALLGATHER_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, input);
  call.collective([&] { return all_gather_args(call, output, input); });
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                                         std::vector<at::Tensor>& inputs,
                                                                         const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core(), "all_gather_coalesced",
                      {c10d::OpType::ALLGATHER_COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)},
                      inputs);
  std::vector<at::Tensor> flat;
  const auto make = [&] {
    const std::vector<std::vector<at::Tensor>> columns = check_all_gather_coalesced(call, outputs, inputs);
    for (const auto& column : columns) flat.insert(flat.end(), column.begin(), column.end());
    return all_gather_list_args(call, columns, inputs);
  };
  call.collective(make, inputs.size());
  return call.work(std::move(flat));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  CollectiveCall call(core(), "all_gather_into_tensor_coalesced",
                      {c10d::OpType::COALESCED, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  const auto make = [&] {
    check_coalesced(call, outputs, inputs);
    return all_gather_args(call, outputs, inputs);
  };
  call.collective(make, outputs.size());
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::GatherOptions& opts) {
  CollectiveCall call(
      core(), "gather",
      {c10d::OpType::GATHER, blocking(opts.asyncOp), timeout_or_default(opts.timeout), static_cast<int>(opts.rootRank)},
      inputs);
  call.collective([&] {
    const at::Tensor& input = check_gather(call, inputs, opts);
    call.check_root_lists(outputs, "outputs", "output", rank_, opts.rootRank);
    call.check_readable(input, "input");
    comm::Gather args;
    args.root = static_cast<int>(opts.rootRank);
    args.type = data_type(input.scalar_type());
    if (rank_ == args.root) {
      for (const at::Tensor& output : outputs.front()) args.outputs.push_back(call.output(output, "outputs"));
      check_outputs_of_ranks(call, outputs.front(), input, rank_);
    }
    args.input = call.input(input, "input", rank_ == args.root ? args.outputs[rank_] : comm::Piece());
    return args;
  });
  return call.work(rank_ == opts.rootRank ? outputs.front() : std::vector<at::Tensor>());
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::scatter(std::vector<at::Tensor>& outputs,
                                                             std::vector<std::vector<at::Tensor>>& inputs,
                                                             const c10d::ScatterOptions& opts) {
  CollectiveCall call(core(), "scatter",
                      {c10d::OpType::SCATTER, blocking(opts.asyncOp), timeout_or_default(opts.timeout),
                       static_cast<int>(opts.rootRank)},
                      inputs.empty() ? at::TensorList() : inputs.front());
  call.collective([&] {
    const at::Tensor& output = check_scatter(call, outputs, opts);
    call.check_root_lists(inputs, "inputs", "input", rank_, opts.rootRank);
    comm::Scatter args;
    args.root = static_cast<int>(opts.rootRank);
    args.output = call.output(output, "output");
    args.type = data_type(output.scalar_type());
    if (rank_ != args.root) return args;
    for (int rank = 0; rank < size_; ++rank) {
      const at::Tensor& input = inputs.front()[rank];
      args.inputs.push_back(call.input(input, "inputs", rank == rank_ ? args.output : comm::Piece()));
    }
    check_inputs_of_ranks(call, inputs.front(), output, rank_);
    return args;
  });
  return call.work(outputs);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                   std::vector<int64_t>& output_splits,
                                                                   std::vector<int64_t>& input_splits,
                                                                   const c10d::AllToAllOptions& opts) {
  CollectiveCall call(core(), "all_to_all_single",
                      {c10d::OpType::ALLTOALL_BASE, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, input);
  call.collective([&] {
    comm::AllToAll args;
    const comm::Piece to = call.output(output, "output");
    const comm::ConstPiece from = call.input(input, "input");
    const ExchangeSplits splits = check_all_to_all_single(call, output, input, output_splits, input_splits);
    args.type = data_type(input.scalar_type());
    const auto* source = static_cast<const std::byte*>(from.data);
    for (const std::int64_t elements : splits.inputs) {
      const std::size_t bytes = elements * input.element_size();
      args.inputs.push_back({source, bytes});
      source += bytes;
    }
    auto* target = static_cast<std::byte*>(to.data);
    for (const std::int64_t elements : splits.outputs) {
      const std::size_t bytes = elements * output.element_size();
      args.outputs.push_back({target, bytes});
      target += bytes;
    }
    return args;
  });
  return call.work({output});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::alltoall(std::vector<at::Tensor>& outputs,
                                                              std::vector<at::Tensor>& inputs,
                                                              const c10d::AllToAllOptions& opts) {
  CollectiveCall call(core(), "all_to_all",
                      {c10d::OpType::ALLTOALL, blocking(opts.asyncOp), timeout_or_default(opts.timeout)}, inputs);
  call.collective([&] {
    check_all_to_all(call, outputs, inputs);
    comm::AllToAll args;
    for (const at::Tensor& output : outputs) args.outputs.push_back(call.output(output, "outputs"));
    for (int rank = 0; rank < size_; ++rank) {
      args.inputs.push_back(call.input(inputs[rank], "inputs", rank == rank_ ? args.outputs[rank_] : comm::Piece()));
    }
    check_exchange(call, outputs, inputs, rank_);
    args.type = data_type(inputs[0].scalar_type());
    return args;
  });
  return call.work(outputs);
}

}  // namespace lockstep
