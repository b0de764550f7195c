// The methods of ProcessGroupMpi that move data between all ranks. A list of tensors is sent as one flat tensor,
// because MPI describes the slices of all ranks as places in one buffer.
#include "c10d/backend/method_checks.h"
#include "mpi/mpi_runtime.h"
#include "mpi/process_group_mpi.h"

namespace lockstep {
namespace {

// From inputs[i] to outputs[i].
void start_all_gathers(MpiCall& call, at::TensorList outputs, at::TensorList inputs) {
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (const at::Tensor& output : outputs) to.push_back(call.output(output, "output"));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    from.push_back(call.input(inputs[i], "input"));
    check_all_gather_into_tensor(call, outputs[i], inputs[i]);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    const int count = call.count(from[i].numel());
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const MPI_Datatype type = runtime.element_type(from[i].element_size());
      return MPI_Iallgather(mpi_address(from[i]), count, type, mpi_address(to[i]), count, type, comm, request);
    });
  }
}

void start_all_gather_list(MpiCall& call, const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  const at::Tensor from = call.input(input, "input");
  const at::Tensor to = call.flat_output(outputs, "outputs");
  check_outputs_of_ranks(call, outputs, input, call.rank());
  const MpiCall::Layout& parts = call.keep(call.layout(outputs));
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const MPI_Datatype type = runtime.element_type(from.element_size());
    return MPI_Iallgatherv(mpi_address(from), call.count(from.numel()), type, mpi_address(to), parts.counts.data(),
                           parts.offsets.data(), type, comm, request);
  });
}

void start_all_to_all(MpiCall& call, const at::Tensor& to, const MpiCall::Layout& to_parts, const at::Tensor& from,
                      const MpiCall::Layout& from_parts) {
  const MpiCall::Layout& out = call.keep(to_parts);
  const MpiCall::Layout& in = call.keep(from_parts);
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    const MPI_Datatype type = runtime.element_type(from.element_size());
    return MPI_Ialltoallv(mpi_address(from), in.counts.data(), in.offsets.data(), type, mpi_address(to),
                          out.counts.data(), out.offsets.data(), type, comm, request);
  });
}

}  // namespace

ProcessGroupMpi::WorkPtr ProcessGroupMpi::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return collective("broadcast", options(c10d::OpType::BROADCAST, opts), [&](MpiCall& call) {
    call.check_root(opts.rootRank);
    const at::Tensor& tensor = call.only(tensors, "tensors");
    const int root = static_cast<int>(opts.rootRank);
    call.check_writable(tensor,
                        "tensor");  // on the root too: if only the others refused it, the root would wait for them
    const at::Tensor memory = rank_ == root ? call.input(tensor, "tensor") : call.output(tensor, "tensor");
    const int count = call.count(memory.numel());
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      return MPI_Ibcast(mpi_address(memory), count, runtime.element_type(memory.element_size()), root, comm, request);
    });
    return call.work(tensors);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  return collective("all_gather", options(c10d::OpType::ALLGATHER, opts), [&](MpiCall& call) {
    const at::Tensor& input = call.only(inputs, "inputs", "requires a single-element input tensor list");
    check_all_gather(call, outputs, inputs);
    start_all_gather_list(call, outputs.front(), input);
    return call.work(outputs.front());
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& opts) {
  return collective("all_gather_into_tensor", options(c10d::OpType::_ALLGATHER_BASE, opts), [&](MpiCall& call) {
    start_all_gathers(call, output, input);
    return call.work({output});
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  return collective("all_gather_coalesced", options(c10d::OpType::ALLGATHER_COALESCED, opts), [&](MpiCall& call) {
    const std::vector<Tensors> columns = check_all_gather_coalesced(call, outputs, inputs);
    Tensors flat;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      start_all_gather_list(call, columns[i], inputs[i]);
      flat.insert(flat.end(), columns[i].begin(), columns[i].end());
    }
    return call.work(std::move(flat));
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions& opts) {
  return collective("all_gather_into_tensor_coalesced", options(c10d::OpType::COALESCED, opts), [&](MpiCall& call) {
    check_coalesced(call, outputs, inputs);
    start_all_gathers(call, outputs, inputs);
    return call.work(outputs);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& opts) {
  return collective("gather", options(c10d::OpType::GATHER, opts), [&](MpiCall& call) {
    const at::Tensor& input = check_gather(call, inputs, opts);
    const int root = static_cast<int>(opts.rootRank);
    const at::Tensor from = call.input(input, "input");
    at::Tensor to;
    MpiCall::Layout parts;
    call.check_own_role([&] {
      call.check_root_lists(outputs, "outputs", "output", rank_, root);
      if (rank_ != root) return;
      to = call.flat_output(outputs.front(), "outputs");
      check_outputs_of_ranks(call, outputs.front(), input, rank_);
      parts = call.layout(outputs.front());
    });
    const MpiCall::Layout& kept = call.keep(parts);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const MPI_Datatype type = runtime.element_type(from.element_size());
      return MPI_Igatherv(mpi_address(from), call.count(from.numel()), type, to.defined() ? mpi_address(to) : nullptr,
                          kept.counts.data(), kept.offsets.data(), type, root, comm, request);
    });
    return call.work(rank_ == root ? outputs.front() : Tensors{});
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& opts) {
  return collective("scatter", options(c10d::OpType::SCATTER, opts), [&](MpiCall& call) {
    const at::Tensor& output = check_scatter(call, outputs, opts);
    const int root = static_cast<int>(opts.rootRank);
    const at::Tensor to = call.output(output, "output");
    at::Tensor from;
    MpiCall::Layout parts;
    call.check_own_role([&] {
      call.check_root_lists(inputs, "inputs", "input", rank_, root);
      if (rank_ != root) return;
      from = call.flat_input(inputs.front(), "inputs");
      check_inputs_of_ranks(call, inputs.front(), output, rank_);
      parts = call.layout(inputs.front());
    });
    const MpiCall::Layout& kept = call.keep(parts);
    call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
      const MPI_Datatype type = runtime.element_type(to.element_size());
      return MPI_Iscatterv(from.defined() ? mpi_address(from) : nullptr, kept.counts.data(), kept.offsets.data(), type,
                           mpi_address(to), call.count(to.numel()), type, root, comm, request);
    });
    return call.work(outputs);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<std::int64_t>& output_splits,
                                                        std::vector<std::int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& opts) {
  return collective("all_to_all_single", options(c10d::OpType::ALLTOALL_BASE, opts), [&](MpiCall& call) {
    const at::Tensor to = call.output(output, "output");
    const at::Tensor from = call.input(input, "input");
    const ExchangeSplits splits = check_all_to_all_single(call, output, input, output_splits, input_splits);
    start_all_to_all(call, to, call.layout(splits.outputs), from, call.layout(splits.inputs));
    return call.work({output});
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& opts) {
  return collective("all_to_all", options(c10d::OpType::ALLTOALL, opts), [&](MpiCall& call) {
    check_all_to_all(call, outputs, inputs);
    const at::Tensor from = call.flat_input(inputs, "inputs");
    const at::Tensor to = call.flat_output(outputs, "outputs");
    check_exchange(call, outputs, inputs, rank_);
    start_all_to_all(call, to, call.layout(outputs), from, call.layout(inputs));
    return call.work(outputs);
  });
}

}  // namespace lockstep
