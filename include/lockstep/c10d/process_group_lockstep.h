// ProcessGroupLockstep: the CPU engine as a c10d::Backend, for LibTorch and for everything written against c10d.
//
// Most programs use lockstep/c10d/distributed.h instead. This class follows c10d's conventions: roots and peers are
// ranks of this group, and every method answers a Work. With `opts.asyncOp` (c10d's default) a method returns at once;
// with asyncOp = false it returns when the operation is done, and throws its error itself. Blocking calls are the
// faster ones on memory that is not the group's own (see allocateTensor): such buffers are streamed through cache-sized
// pieces.
//
// Tensors: CPU, dense, of any dtype (reductions: every dtype but float8 and quantised ones). Elements travel in
// row-major order of their indices whatever the strides, so strides may differ between ranks. Inputs may be views of
// any kind, lazy conjugates and negatives among them. Outputs may be such views too (they are written through a
// temporary, for asynchronous calls at the moment at which completion is seen), but no two elements of one may share
// memory. Tensors of one call may share memory: inputs are read before outputs are written, and the last output counts.
// Empty tensors work.
//
// Errors: everything that can be checked on one rank is checked before anything moves (lockstep::ArgumentError); the
// other ranks of a collective then get lockstep::BackendError (kMismatch) with the rank and its reason, at once, so
// that none waits for it. What can only be seen together (kinds, counts, types, roots) fails on every rank in the same
// way. The group stays usable, and its ranks in step.
//
// Ranks with different dtypes are told apart by every collective (but not float8 and quantised dtypes from one
// another), not by send and recv, which compare sizes in bytes.
//
// Progress: there is no progress thread. An asynchronous operation moves on inside calls of any rank; Work::wait and
// Work::isCompleted help. Only Work::getFuture on unfinished work starts a helper thread (one per group, and another
// where callbacks wait; kept until shutdown).
//
// Works may be let go of: the group keeps what is under way and finishes it in later calls. When a barrier of this rank
// is done, all collectives that this rank has started before are; one of them that failed fails the barrier if nobody
// keeps its Work. Operations on one tensor do not wait for one another: the first must be done before the next starts.
//
// Forks: in a fork of the rank's process every call is refused (kUnsupported), and neither it nor the end of the fork
// has any effect on the group. Tensors of the group's memory can be read and written there; nobody else sees what is
// written.
//
// Threads: all methods may be called from several threads; operations take the order in which calls get the group's
// lock.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/c10d/group_backend.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/store/store.h"

namespace lockstep {

class GroupCore;

// The arena in which this process shares memory with the other ranks of the machine; made at the first call, shared by
// all groups, gone with the last group and tensor that uses it.
std::shared_ptr<comm::SharedArena> process_arena();

// An allocator of that arena, for tensors that take part in collectives in place.
std::shared_ptr<c10::Allocator> arena_allocator();

struct ProcessGroupLockstepOptions {
  int rank = 0;
  int world_size = 1;
  std::string name = "world";  // in errors; unique among the groups that share the store
  std::chrono::milliseconds timeout =
      std::chrono::minutes(30);  // for joining, and for each operation unless it has its own
  std::vector<int>
      global_ranks;  // of the members, by group rank; empty: the same numbers. Used in split() and in names
  std::string profiled_as = kProfiledAs;  // operations appear in LibTorch's profiles as "lockstep:all_reduce"
  static constexpr const char* kProfiledAs = "lockstep";
};

class ProcessGroupLockstep : public GroupBackend {
 public:
  static constexpr const char* kBackendName = "lockstep";

  // Collective over the members. Blocks until all have joined; throws BackendError (kTimeout names who is missing).
  static c10::intrusive_ptr<ProcessGroupLockstep> create(std::shared_ptr<comm::Store> store,
                                                         const ProcessGroupLockstepOptions& options);
  ~ProcessGroupLockstep() override;

  const std::string getBackendName() const override { return kBackendName; }  // NOLINT(readability-const-return-type)
  const std::string& name() const { return membership().name; }

  // Several tensors of a rank, as Gloo takes them, of one dtype and size: those of the root that opts.rootTensor names
  // go to all tensors of all ranks.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts = c10d::BroadcastOptions()) override;
  // Several tensors of a rank, of one dtype and size: each becomes the reduction of all tensors of all ranks; AVG
  // divides by the number of ranks. A sparse (COO) tensor can be summed too: its ranks may name different elements.
  // That call blocks in either form.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts = c10d::AllreduceOptions()) override;
  // Every tensor is an all-reduce of its own; dtypes may differ. One Work for all.
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceCoalescedOptions& opts = c10d::AllreduceCoalescedOptions()) override;
  // Tensors of ranks other than opts.rootRank stay as they are.
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts = c10d::ReduceOptions()) override;

  // outputs[0][r] gets rank r's input and must have its size; sizes may differ between ranks. With n inputs, of one
  // dtype and size, there are n lists of outputs, and each gets input i of rank r at r * n + i.
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  // `output` holds world_size times the elements of `input`, in rank order.
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  // outputs[r][i] gets rank r's inputs[i].
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  // outputs: one list on the root, none elsewhere. Sizes may differ between ranks.
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts = c10d::GatherOptions()) override;
  // inputs: one list on the root, none elsewhere.
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts = c10d::ScatterOptions()) override;

  // inputs[0][r] is this rank's share of rank r's output.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  // `input` holds world_size times the elements of `output`.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;

  // Splits count rows of the first dimension; no splits: equal parts.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;

  c10::intrusive_ptr<c10d::Work> send_async(const Message& message) override;
  c10::intrusive_ptr<c10d::Work> receive_async(const Message& message) override;
  void send_blocking(const Message& message) override;
  int receive_blocking(const Message& message) override;

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts = c10d::BarrierOptions()) override;
  // A blocking barrier; when it times out, every rank that came gets an error that names all those that did not. (They
  // are always collected; `wait_all_ranks` only has rank 0 begin with all of them instead of the first.) A timeout of
  // zero: who is not there yet is missing.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks = false) override;

  // Number of the last collective started here; the same on every rank between operations.
  std::uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override {}

  // Memory that the other ranks can map, so that collectives on it copy nothing: `size` elements, contents unspecified.
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;  // NOLINT(google-runtime-int): c10d's
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  // Breaks the group for every rank: operations, now and later, fail with kAborted and this reason.
  void abort() override;
  void abort(const std::string& reason);
  // In place of a collective that this rank cannot call: tells the other ranks why, at once, as a mismatch. A method
  // that throws ArgumentError has done so.
  void refuse(const std::string& reason);
  // Leaves the group, after up to 5 s in which collectives that are under way may end if the group works: ranks that
  // still wait for this one get an error; further calls here throw. Waits for callbacks of futures, unless it is called
  // in one. Safe to call twice.
  void shutdown() override;
  // The same without waiting for callbacks.
  void retire();
  Status health() const override;

 private:
  ProcessGroupLockstep(Membership membership, std::shared_ptr<GroupCore> core);
  const std::string& who() const override;
  c10::intrusive_ptr<c10d::Backend> create_part(Membership part) const override;

  const std::shared_ptr<GroupCore> core_;
};

}  // namespace lockstep
