// ProcessGroupLockstep: the CPU engine as a c10d::Backend, for LibTorch and for everything written against c10d.
//
// Most programs use lockstep/c10d/distributed.h instead. This class follows c10d's conventions: roots and peers are
// ranks of this group, and every method returns a Work. With `opts.asyncOp` (c10d's default) a method returns at once.
// With asyncOp = false it returns when the operation is done, and throws its error itself. On memory that is not the
// group's own (see allocateTensor), blocking calls are faster: they copy it through staging in chunks that fit the
// cache.
//
// Tensors: CPU, dense, of any dtype (reductions: every dtype but float8 and quantised ones). Elements travel in
// row-major order of their indices whatever the strides, so strides may differ between ranks. Inputs may be views of
// any kind, lazy conjugates and negatives included. Outputs may be such views too: data reaches them through a
// temporary (in asynchronous calls: when completion is seen). But no two elements of an output may share memory.
// Tensors of one call may share memory: inputs are read before outputs are written, and the last output counts. Empty
// tensors work.
//
// Errors: a rank checks all that it can see alone before anything moves (lockstep::ArgumentError). The other ranks of a
// collective then get lockstep::BackendError (kMismatch) at once, with the rank and its reason, so that none waits for
// it. An error that only all ranks together can see (kinds, counts, types, roots) is the same on every rank. The group
// stays usable, and its ranks stay in step.
//
// Every collective finds ranks whose dtypes differ (but it cannot tell float8 and quantised dtypes from one another).
// send and recv do not: they compare sizes in bytes.
//
// Progress: there is no progress thread. An asynchronous operation makes progress in calls of any rank, such as
// Work::wait and Work::isCompleted. Only Work::getFuture on unfinished work starts a helper thread: one for the group,
// and a second one if callbacks wait. The group keeps both until shutdown.
//
// The caller may drop a Work: the group keeps what is under way and finishes it in later calls. When a barrier of this
// rank is done, so are all collectives that this rank started before. If one of them failed and nobody keeps its Work,
// the barrier fails. Operations on one tensor do not wait for one another: the first must be done before the next
// starts.
//
// Forks: in a fork of the rank's process every call throws (kUnsupported). Neither these calls nor the end of the fork
// affect the group. The fork can read and write tensors in the group's memory; nobody else sees what it writes.
//
// Threads: all methods may be called from several threads. Operations are ordered by when each call gets the group's
// lock.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/c10d/group_backend.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/store/store.h"

namespace lockstep {

class GroupCore;
namespace comm {
class MeetingPlace;
class SharedBlock;
}  // namespace comm

// The arena in which this process shares memory with the other ranks of the machine. The first call makes the arena.
// All groups share it, and it is freed with the last group and tensor that uses it.
std::shared_ptr<comm::SharedArena> process_arena();
// Returns to the system the freed memory that the arena keeps. Does nothing if there is no arena.
void trim_process_arena();

// An allocator of that arena: collectives use its tensors in place.
std::shared_ptr<c10::Allocator> arena_allocator();

struct ProcessGroupLockstepOptions {
  int rank = 0;
  int world_size = 1;
  std::string name = "world";  // the group's name in errors; unique among the groups that share the store
  // For joining, and for each operation without a timeout of its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // The members' ranks in the world, by group rank; empty: the same numbers. Used in split() and in errors.
  std::vector<int> global_ranks;
  // The records of the ranks, by group rank, as in comm::CommunicatorOptions; empty: the ranks exchange them.
  std::vector<comm::Member> members = {};
  std::uint64_t family = 0;  // as in comm::CommunicatorOptions
  // As in c10d: this rank joins nobody until reconfigure(), and abort() takes the group back to that state.
  bool enable_reconfigure = false;
  std::string profiled_as = kProfiledAs;  // operations appear in LibTorch's profiles as "lockstep:all_reduce"
  static constexpr const char* kProfiledAs = "lockstep";
};

class ProcessGroupLockstep : public GroupBackend {
 public:
  static constexpr const char* kBackendName = "lockstep";

  // Collective over the members. Blocks until all have joined; throws BackendError (kTimeout names the missing ranks).
  // With enable_reconfigure it does not wait for anybody.
  static c10::intrusive_ptr<ProcessGroupLockstep> create(std::shared_ptr<comm::Store> store,
                                                         const ProcessGroupLockstepOptions& options);
  ~ProcessGroupLockstep() override;

  const std::string getBackendName() const override { return kBackendName; }  // NOLINT(readability-const-return-type)
  const std::string& name() const { return membership().name; }

  // As with Gloo, a rank may give several tensors, of one dtype and size: the root's tensor with index opts.rootTensor
  // goes to all tensors of all ranks.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts = c10d::BroadcastOptions()) override;
  // A rank may give several tensors, of one dtype and size: each becomes the reduction of all tensors of all ranks; AVG
  // divides by the number of ranks. SUM takes a sparse (COO) tensor too, whose elements may differ between ranks; that
  // call blocks in either form.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts = c10d::AllreduceOptions()) override;
  // One all-reduce per tensor; dtypes may differ. One Work for all.
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

  // inputs[0][r] is what this rank adds to rank r's output.
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
  // A blocking barrier; when it times out, every rank that came gets an error that names all the others. With
  // `wait_all_ranks`, rank 0's error also begins with all of them instead of the first. With a timeout of zero, a rank
  // that is not there yet counts as missing.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks = false) override;

  // Number of the last collective started here; the same on every rank between operations.
  std::uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override {}

  // `size` elements, contents unspecified, in memory that the other ranks can map: collectives on it copy nothing.
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;  // NOLINT(google-runtime-int): c10d's
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  // Whether all ranks are on one machine, where they share memory.
  bool shares_memory() const;
  // Collective: makes memory of `bytes` (the same number on every rank) that all ranks see (shm/shared_block.h). It is
  // zero at first, and outlives the group. Throws BackendError: kUnsupported where the ranks are on several machines,
  // kUnavailable where the system gives no memory.
  std::shared_ptr<comm::SharedBlock> share_block(std::size_t bytes);

  // Breaks the group for every rank: operations, now and later, fail with kAborted and this reason.
  void abort() override;
  void abort(const std::string& reason);
  // In place of a collective that this rank cannot call: tells the other ranks the reason at once, as a mismatch. A
  // method that throws ArgumentError has done this already.
  void refuse(const std::string& reason);
  // Leaves the group. If all groups of this process work, first gives collectives that are under way up to 5 s to end.
  // Ranks that still wait for this one get an error; further calls here throw. Waits for callbacks of futures, unless
  // called in one. Safe to call twice.
  void shutdown() override;
  // Like shutdown(), but gives collectives up to `parting_time`, and does not wait for callbacks. Later calls throw
  // `why`; if `why` is ok, they throw that this rank has left.
  void retire(std::chrono::milliseconds parting_time, const Status& why = {});
  Status health() const override;
  Status replaced() const override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Forms this group anew, of other members, for c10d (torch.distributed._reconfigure). C++ programs call
  // lockstep::reconfigure, which looks after the world and its groups too.
  //
  // A handle says where this process can be met again; it stays valid until this object ends. The first call opens a
  // small store, with a thread, for the members.
  bool supportsReconfigure() const override {
    return true;
  }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Collective over the members: all give the same options. A vector of handles gives rank r to handle r; a set keeps
  // the order of the earlier ranks. Operations under way first end with kAborted. So do later uses of this library's
  // own groups beside this one, such as the group of an earlier lockstep::DistributedDataParallel. What uses
  // this object itself (PyTorch's own DistributedDataParallel does) goes on with the new members. Blocks until the
  // group is made; the Work is done. The memory of the group's tensors stays valid. One call at a time.
  //
  // Throws ArgumentError for handles that are wrong by themselves (none; garbage; of another build or job; one twice;
  // this process's own is missing): the group is as before. Throws BackendError: kMismatch if a member has used the
  // uuid for this group or gives other handles; kTimeout, which names the members that did not come in time;
  // kPeerFailed if a member ends meanwhile. This rank is then in no group, and may call reconfigure() again with
  // another uuid.
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& opts) override;

  // Makes a group of the ranks that are not excluded. Collective over these ranks. They meet in this group's store,
  // which must still be there. SHRINK_ABORT (1) aborts this group first.
  bool supportsShrinking() const override {
    return true;
  }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags = 0,
                                           const c10::intrusive_ptr<Options>& opts_override = nullptr) override;
#endif

  std::shared_ptr<comm::Store> watched(std::shared_ptr<comm::Store> store, std::vector<int> ranks) const override;

 private:
  ProcessGroupLockstep(Membership membership, std::shared_ptr<GroupCore> core,
                       const ProcessGroupLockstepOptions& options);
  const std::shared_ptr<GroupCore>& core() const {
    return *core_.load(std::memory_order_acquire);
  }
  void renew_core(std::shared_ptr<GroupCore> core) LOCKSTEP_EXCLUDES(place_mutex_);
  std::shared_ptr<comm::MeetingPlace> meeting_place() const LOCKSTEP_EXCLUDES(place_mutex_);
  // Joins the group of these options.
  static std::shared_ptr<GroupCore> join(const std::shared_ptr<comm::Store>& store,
                                         const ProcessGroupLockstepOptions& options);
  static ProcessGroupLockstepOptions options_of(const Membership& membership);
  const std::string& who() const override;
  c10::intrusive_ptr<c10d::Backend> create_part(Membership part) const override;
  c10::intrusive_ptr<c10d::Backend> create_twin(Membership twin) const override;
  // Throws where this rank has left the group.
  std::shared_ptr<comm::Communicator> member_communicator() const;
  std::shared_ptr<comm::Store> watched_by_all(std::shared_ptr<comm::Store> store) const;

  const std::string profiled_as_;
  const bool enable_reconfigure_;
  mutable Mutex place_mutex_;
  std::deque<std::shared_ptr<GroupCore>> cores_ LOCKSTEP_GUARDED_BY(place_mutex_);  // the last one counts
  std::atomic<const std::shared_ptr<GroupCore>*> core_{nullptr};
  mutable std::shared_ptr<comm::MeetingPlace> place_ LOCKSTEP_GUARDED_BY(place_mutex_);
  std::atomic<bool> reconfiguring_{false};
  std::atomic<int> blocks_{0};  // shared so far: the same number on every rank
};

}  // namespace lockstep
