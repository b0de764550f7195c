// Collective and point-to-point operations on tensors, under torch.distributed's names.
//
//   lockstep::all_reduce(t);                                         // blocking: t holds the sum afterwards
//   lockstep::all_reduce(t, {.op = c10d::ReduceOp::AVG, .group = g});
//   auto work = lockstep::all_reduce_async(t);                       // returns at once
//   work->wait();                                                    // t may be read and written again
//
// Each operation has two forms. The blocking form throws the operation's error. The asynchronous form, *_async (isend,
// irecv), returns LibTorch's c10d::Work: wait(), isCompleted(), getFuture(), result(). Nobody may touch the tensors of
// an asynchronous operation until its Work, or a later barrier of the group, is seen complete. This includes other
// operations: two operations that are under way on one tensor do not wait for one another. The caller may drop a Work.
// An asynchronous call returns at once, however many operations are under way; the other ranks see 32 operations of a
// group at once, and later operations wait in a queue. The blocking form costs less. See
// lockstep/c10d/process_group_lockstep.h for the rules on tensors (devices, dtypes, strides) and on progress.
//
// Every rank of the group calls the same operations in the same order, with matching dtypes and sizes. `src` and `dst`
// are ranks of the world. Backend lockstep tells every rank when calls do not match, or when a rank could not take
// part. With mpi and nccl, results may be wrong or incomplete instead, or other ranks wait (docs/backends.md). Every
// function throws without init_process_group, and on a rank outside `group`. Errors: lockstep/c10d/errors.h and
// docs/errors.md.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/base/call_site.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

using Work = c10::intrusive_ptr<c10d::Work>;

// For `src` of recv and irecv: the rank that sends first.
inline constexpr int kAnySource = -1;
// Stands for the group's own timeout.
inline constexpr std::chrono::milliseconds kGroupTimeout{-1};

struct CollectiveOptions {
  ProcessGroup group = nullptr;                       // null: the world
  std::chrono::milliseconds timeout = kGroupTimeout;  // positive, counts from the call; an asynchronous operation
                                                      // reports a timeout in wait() or in its future
};

struct ReductionOptions {
  // SUM, AVG (integers add in 64 bits and truncate the quotient), PRODUCT, MIN, MAX, BAND, BOR, BXOR, or
  // premul_sum(factor). With backend lockstep, float sums have the same bits on every rank, and in every run with the
  // same ranks on each machine: it adds in rank order on a machine, then in the order of machines. mpi and nccl add in
  // an order of their own. Refused (ArgumentError) before anything moves: AVG of bool; MIN and MAX of complex; BAND,
  // BOR, BXOR of floating point and complex; premul_sum of integers and bool; every reduction of float8 and quantised
  // dtypes. For bool, SUM and MAX mean "or", PRODUCT and MIN mean "and". Sparse tensors: SUM only.
  c10d::ReduceOp op = c10d::ReduceOp::SUM;
  ProcessGroup group = nullptr;
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct PointToPointOptions {
  int tag = 0;  // at least 0; a receive takes messages with an equal tag only
  ProcessGroup group = nullptr;
  std::chrono::milliseconds timeout = kGroupTimeout;  // NCCL's isend and irecv have the group's timeout instead
};

// The reduction that multiplies every input by `factor` before it sums.
c10d::ReduceOp premul_sum(double factor);

// `tensor` of every rank becomes the reduction of all ranks' tensors.
void all_reduce(const at::Tensor& tensor, const ReductionOptions& options = {}, CallSite site = CallSite::here());
Work all_reduce_async(const at::Tensor& tensor, const ReductionOptions& options = {}, CallSite site = CallSite::here());

// all_reduce of each of several tensors; their dtypes may differ. A tensor that is in the list twice is reduced once.
void all_reduce_coalesced(at::TensorList tensors, const ReductionOptions& options = {},
                          CallSite site = CallSite::here());
Work all_reduce_coalesced_async(at::TensorList tensors, const ReductionOptions& options = {},
                                CallSite site = CallSite::here());

// `tensor` of every other rank gets the values of `tensor` of `src`.
void broadcast(const at::Tensor& tensor, int src, const CollectiveOptions& options = {},
               CallSite site = CallSite::here());
Work broadcast_async(const at::Tensor& tensor, int src, const CollectiveOptions& options = {},
                     CallSite site = CallSite::here());

// `tensor` of `dst` becomes the reduction. On other ranks it keeps its values (in other libraries it may get partial
// sums).
void reduce(const at::Tensor& tensor, int dst, const ReductionOptions& options = {}, CallSite site = CallSite::here());
Work reduce_async(const at::Tensor& tensor, int dst, const ReductionOptions& options = {},
                  CallSite site = CallSite::here());

// outputs[r] gets the input of group rank r and must have its size; sizes may differ between ranks.
void all_gather(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options = {},
                CallSite site = CallSite::here());
Work all_gather_async(at::TensorList outputs, const at::Tensor& input, const CollectiveOptions& options = {},
                      CallSite site = CallSite::here());

// `output` holds world_size times as many elements as `input`: all inputs, by group rank. For an input of [n, ...],
// `output` is [world_size * n, ...] (inputs concatenated) or [world_size, n, ...] (inputs stacked).
void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input, const CollectiveOptions& options = {},
                            CallSite site = CallSite::here());
Work all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                  const CollectiveOptions& options = {}, CallSite site = CallSite::here());

// The all_gather of each of several inputs; their dtypes may differ. outputs[r][i] gets inputs[i] of group rank r. Not
// with NCCL.
void all_gather_coalesced(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                          const CollectiveOptions& options = {}, CallSite site = CallSite::here());
Work all_gather_coalesced_async(std::span<const std::vector<at::Tensor>> outputs, at::TensorList inputs,
                                const CollectiveOptions& options = {}, CallSite site = CallSite::here());

// all_gather_into_tensor of each of several pairs outputs[i], inputs[i].
void all_gather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs,
                                      const CollectiveOptions& options = {}, CallSite site = CallSite::here());
Work all_gather_into_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                            const CollectiveOptions& options = {}, CallSite site = CallSite::here());

// On `dst`, outputs[r] gets the input of group rank r; elsewhere `outputs` is empty.
void gather(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options = {},
            CallSite site = CallSite::here());
Work gather_async(const at::Tensor& input, at::TensorList outputs, int dst, const CollectiveOptions& options = {},
                  CallSite site = CallSite::here());

// Group rank r's output becomes inputs[r] of `src`; elsewhere `inputs` is empty.
void scatter(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options = {},
             CallSite site = CallSite::here());
Work scatter_async(const at::Tensor& output, at::TensorList inputs, int src, const CollectiveOptions& options = {},
                   CallSite site = CallSite::here());

// Group rank r's output becomes the reduction of all ranks' inputs[r].
void reduce_scatter(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options = {},
                    CallSite site = CallSite::here());
Work reduce_scatter_async(const at::Tensor& output, at::TensorList inputs, const ReductionOptions& options = {},
                          CallSite site = CallSite::here());

// reduce_scatter with the inputs in one tensor, which has world_size times as many elements as `output`.
void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReductionOptions& options = {},
                           CallSite site = CallSite::here());
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                 const ReductionOptions& options = {}, CallSite site = CallSite::here());

// reduce_scatter_tensor of each of several pairs outputs[i], inputs[i].
void reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs,
                                     const ReductionOptions& options = {}, CallSite site = CallSite::here());
Work reduce_scatter_tensor_coalesced_async(at::TensorList outputs, at::TensorList inputs,
                                           const ReductionOptions& options = {}, CallSite site = CallSite::here());

// outputs[r] gets inputs[this rank] of group rank r; sizes may differ.
void all_to_all(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options = {},
                CallSite site = CallSite::here());
Work all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CollectiveOptions& options = {},
                      CallSite site = CallSite::here());

// all_to_all with the outputs and the inputs in one tensor each. A tensor is cut along its first dimension: into equal
// parts, or by its splits, the number of rows for each group rank.
struct AllToAllSingleOptions {
  std::vector<std::int64_t> output_splits = {};
  std::vector<std::int64_t> input_splits = {};
  ProcessGroup group = nullptr;
  std::chrono::milliseconds timeout = kGroupTimeout;
};
void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const AllToAllSingleOptions& options = {},
                       CallSite site = CallSite::here());
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                             const AllToAllSingleOptions& options = {}, CallSite site = CallSite::here());

// Returns when every rank has called it. By then all collectives of the group that this rank started before are done.
// If one of them failed and nobody keeps its Work, the barrier throws that error. Runs on the CPU's backend where the
// group has one.
void barrier(const CollectiveOptions& options = {}, CallSite site = CallSite::here());
Work barrier_async(const CollectiveOptions& options = {}, CallSite site = CallSite::here());

struct MonitoredBarrierOptions {
  ProcessGroup group = nullptr;
  std::chrono::milliseconds timeout = kGroupTimeout;
  // Rank 0's error begins with all lost ranks instead of the first.
  bool wait_all_ranks = false;
};
// A barrier that finds lost ranks: after `timeout`, every rank that came gets an error (kTimeout) that names the
// missing ranks. The group is broken then: later operations fail with this error. NCCL has no such barrier.
void monitored_barrier(const MonitoredBarrierOptions& options = {}, CallSite site = CallSite::here());

// Messages between two ranks with equal tags arrive in the order of sending. If a message has another size than the
// receiver's `tensor`, the receiver gets an error. send returns when `tensor` may be reused.
void send(const at::Tensor& tensor, int dst, const PointToPointOptions& options = {}, CallSite site = CallSite::here());
// Returns the sender.
int recv(const at::Tensor& tensor, int src = kAnySource, const PointToPointOptions& options = {},
         CallSite site = CallSite::here());
Work isend(const at::Tensor& tensor, int dst, const PointToPointOptions& options = {},
           CallSite site = CallSite::here());
// Work::sourceRank tells the sender, as a group rank.
Work irecv(const at::Tensor& tensor, int src = kAnySource, const PointToPointOptions& options = {},
           CallSite site = CallSite::here());

// One message of a list for batch_isend_irecv, which starts them all at once: no order of the list makes ranks wait for
// one another.
struct PointToPoint {
  enum class Kind { kSend, kReceive };
  Kind kind = Kind::kSend;
  at::Tensor tensor;
  int peer = 0;  // the destination, or the source (kAnySource is allowed)
  PointToPointOptions options = {};
};
// Returns one Work per entry, in the order of the list. NCCL makes one operation of all entries of a group and device;
// these entries share a Work. Every entry is checked before any is started: after an ArgumentError nothing is under
// way.
std::vector<Work> batch_isend_irecv(std::span<const PointToPoint> list, CallSite site = CallSite::here());

}  // namespace lockstep
