// The methods of ProcessGroupMpi that move data between all ranks. A list of tensors is sent as one flat tensor,
// because MPI describes the slices of all ranks as places in one buffer.
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
    call.check_same_dtype(outputs[i], "output", inputs[i], "input");
    call.check_elements(outputs[i], "output", inputs[i].numel() * call.group_size(),
                        "world_size times those of `input`");
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
  call.check_count(outputs.size(), call.group_size(), "outputs", "invalid output tensor list at index 0");
  const at::Tensor from = call.input(input, "input");
  const at::Tensor to = call.flat_output(outputs, "outputs");
  call.check_same_dtype(to, "outputs", input, "input");
  call.check_elements(outputs[call.rank()], "outputs[this rank]", input.numel(), "those of `input`");
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
    call.check_count(outputs.size(), 1, "outputs", "requires input/output tensor lists to have the same length");
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
    call.check_count(outputs.size(), size_, "outputs", "output lists should be equal to world size");
    for (const Tensors& of_rank : outputs) {
      call.check_count(of_rank.size(), inputs.size(), "outputs[rank]", "invalid output size");
    }
    Tensors flat;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors column;
      for (const Tensors& of_rank : outputs) column.push_back(of_rank[i]);
      start_all_gather_list(call, column, inputs[i]);
      flat.insert(flat.end(), column.begin(), column.end());
    }
    return call.work(std::move(flat));
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions& opts) {
  return collective("all_gather_into_tensor_coalesced", options(c10d::OpType::COALESCED, opts), [&](MpiCall& call) {
    call.check_count(inputs.size(), outputs.size(), "inputs",
                     "requires input/output tensor lists to have the same length");
    start_all_gathers(call, outputs, inputs);
    return call.work(outputs);
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& opts) {
  return collective("gather", options(c10d::OpType::GATHER, opts), [&](MpiCall& call) {
    call.check_root(opts.rootRank);
    const at::Tensor& input = call.only(inputs, "inputs", "requires a single-element input tensor list");
    const int root = static_cast<int>(opts.rootRank);
    const at::Tensor from = call.input(input, "input");
    at::Tensor to;
    MpiCall::Layout parts;
    call.check_own_role([&] {
      call.check_root_lists(outputs, "outputs", "output", rank_, root);
      if (rank_ != root) return;
      to = call.flat_output(outputs.front(), "outputs");
      call.check_same_dtype(to, "outputs", input, "input");
      call.check_elements(outputs.front()[rank_], "outputs[this rank]", input.numel(), "those of `input`");
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
    call.check_root(opts.rootRank);
    const at::Tensor& output = call.only(outputs, "outputs", "requires a single-element output tensor list");
    const int root = static_cast<int>(opts.rootRank);
    const at::Tensor to = call.output(output, "output");
    at::Tensor from;
    MpiCall::Layout parts;
    call.check_own_role([&] {
      call.check_root_lists(inputs, "inputs", "input", rank_, root);
      if (rank_ != root) return;
      from = call.flat_input(inputs.front(), "inputs");
      call.check_same_dtype(output, "output", from, "inputs");
      call.check_elements(inputs.front()[rank_], "inputs[this rank]", output.numel(), "those of `output`");
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
    call.check_same_dtype(output, "output", input, "input");
    start_all_to_all(call, to, call.layout(call.split_elements(output, "output", output_splits)), from,
                     call.layout(call.split_elements(input, "input", input_splits)));
    return call.work({output});
  });
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& opts) {
  return collective("all_to_all", options(c10d::OpType::ALLTOALL, opts), [&](MpiCall& call) {
    call.check_count(inputs.size(), size_, "inputs", "input tensor list size does not match world size");
    call.check_count(outputs.size(), size_, "outputs", "output tensor list size does not match world size");
    const at::Tensor from = call.flat_input(inputs, "inputs");
    const at::Tensor to = call.flat_output(outputs, "outputs");
    call.check_same_dtype(to, "outputs", from, "inputs");
    call.check_elements(outputs[rank_], "outputs[this rank]", inputs[rank_].numel(), "those of inputs[this rank]");
    start_all_to_all(call, to, call.layout(outputs), from, call.layout(inputs));
    return call.work(outputs);
  });
}

}  // namespace lockstep
