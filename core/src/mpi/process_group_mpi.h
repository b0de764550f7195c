// ProcessGroupMpi: the MPI that started the job as a c10d::Backend.
//
// It keeps the rules of ProcessGroupLockstep (tensors, dtypes, blocking and asynchronous calls, in-place use, roots and
// peers as ranks of the group, argument checks before anything moves), with these differences:
//
// Not all ranks are told when they disagree about kind, size or type of an operation. MPI finds slices that are too
// long for their receiver, which breaks the group on the rank that sees it. After slices that are too short, the rest
// of the output keeps its values. recv finds every wrong size and leaves the group usable. mpirun handles lost ranks:
// it ends the job. A timeout breaks the group on this rank only.
//
// A collective that a rank refuses, because its arguments are wrong, leaves the group usable if all ranks refuse it.
// If not, the group breaks on every rank: those that wait for it get kMismatch with the reason, from the store, within
// a second; the rank that has refused gets it from its next collective.
//
// MPI chooses the order of sums: the same on every rank, but not the rank order of the lockstep engine. AVG divides the
// sum once; PREMUL_SUM multiplies, with rounding, before it adds. A call takes at most 2^31 - 1 elements. Quantized
// tensors are refused. The largest tag is one less than MPI's.
//
// Threads: any, as for ProcessGroupLockstep.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "c10d/backend/backend_plugin.h"
#include "lockstep/c10d/group_backend.h"
#include "mpi/mpi_call.h"
#include "mpi/mpi_group.h"

namespace lockstep {

class ProcessGroupMpi final : public GroupBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Collective over the members. Throws kInvalidArgument when MPI has other ranks for these processes; kTimeout names
  // the members that did not come.
  static c10::intrusive_ptr<c10d::Backend> create(const BackendRequest& request);
  ~ProcessGroupMpi() override;

  const std::string getBackendName() const override { return "mpi"; }  // NOLINT(readability-const-return-type)

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = c10d::BroadcastOptions()) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = c10d::AllreduceOptions()) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts = c10d::AllreduceCoalescedOptions()) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = c10d::ReduceOptions()) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts = c10d::GatherOptions()) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts = c10d::ScatterOptions()) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;

  WorkPtr send_async(const Message& message) override;
  WorkPtr receive_async(const Message& message) override;

  WorkPtr barrier(const c10d::BarrierOptions& opts = c10d::BarrierOptions()) override;
  // When some ranks do not come in time, every rank that came gets an error that names them.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks = false) override;

  std::uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  void setSequenceNumberForGroup() override {}

  // Breaks the group on this rank.
  void abort() override;
  void shutdown() override { group_->leave(); }
  Status health() const override { return group_->error(); }

 private:
  ProcessGroupMpi(Membership membership, std::shared_ptr<MpiGroup> group);
  const std::string& who() const override { return group_->who(); }
  void check_limits(const char* operation, const Message& message) const override;
  c10::intrusive_ptr<c10d::Backend> create_part(Membership part) const override;
  template <typename CallOptions>
  MpiCall::Options options(c10d::OpType type, const CallOptions& opts) const {
    return {type, opts.asyncOp, timeout_or_default(opts.timeout)};
  }
  // Runs one collective. If `body` throws before it has begun, the other ranks are told that this rank has refused it.
  template <typename Body>
  WorkPtr collective(const char* operation, const MpiCall::Options& options, const Body& body) {
    MpiCall call(group_, operation, rank_, options);
    try {
      return body(call);
    } catch (const std::exception& error) {
      call.refuse(error);
      throw;
    }
  }
  enum class Way { kSend, kReceive };
  void check_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  WorkPtr barrier_message(const at::Tensor& tensor, int peer, Way way);
  // Sets missing[rank] for each rank that did not come.
  void lead_barrier(std::chrono::milliseconds timeout, const at::Tensor& missing);

  const std::shared_ptr<MpiGroup> group_;
};

}  // namespace lockstep
