// Reducer: makes the gradients of a model their mean over all ranks, during the backward pass.
//
// Most programs use it through DistributedDataParallel. Training loops without a torch::nn::Module use it directly.
//
// Gradients are in buckets: flat buffers in memory that the ranks share. If a gradient's allocation can be predicted,
// autograd computes the gradient straight in its bucket (see docs/gradients.md). Otherwise the gradient
// is copied there once, while still in cache. `parameter.grad()` is a view of the bucket. The all-reduce of a bucket
// starts once all its gradients are there, while the backward pass goes on. When backward() returns, all buckets are
// reduced and each gradient is the mean.
//
// The first pass records in which order gradients become ready; the buckets are built at its end, in rank 0's order.
// A rank that has no gradient of a parameter counts as zero. If no rank has a gradient of a parameter,
// `parameter.grad()` keeps its value.
//
// Threads: one forward and backward pass at a time. Autograd may run the backward pass in threads of its own. The
// statistics (from bucket_bytes() on) may be asked for in any thread, also in a communication hook.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/call_site.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/nn/comm_hook.h"

namespace lockstep {

// A parameter or a buffer.
struct NamedParameter {
  std::string name;
  torch::Tensor tensor;
};

struct ReducerOptions {
  // A bucket is closed once it has reached this size, MiB. Larger buckets need fewer calls, smaller buckets start
  // earlier.
  double bucket_cap_mb = 25;
  // The same for the first bucket to be ready: smaller, so that communication starts early.
  double first_bucket_mb = 1;
  // Off: gradients are tensors of their own, copied out of the buckets after each pass (one more copy, twice the
  // memory).
  bool gradient_as_bucket_view = true;
  // On: a pass that does not use exactly the parameters of the first pass is an error that names the difference. Off:
  // such a pass works.
  bool static_graph = false;
};

class Reducer {
 public:
  // Collective: makes a group of its own beside `group`, and talks in that group. All ranks pass the same parameters in
  // the same order (DistributedDataParallel checks that). Parameters that require no gradient are ignored. Rank 0 sends
  // `buffers` to all ranks in every pass that sends; `buffers` may be empty. The sizes, dtypes and devices of
  // parameters and buffers must not change: a backward pass that finds a change throws and names it. Errors of the
  // reducer's collectives name `site`.
  Reducer(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
          const ReducerOptions& options, CallSite site = CallSite::here());
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Detaches those reducers of these parameters whose group reconfigure() has formed anew: they see no more gradients.
  // Call it before making another reducer of the parameters.
  static void detach_replaced(const std::vector<NamedParameter>& parameters);
  // Throws if a parameter or buffer has other sizes now. Call it before a pass.
  void check_sizes() const;
  // Throws kAborted if reconfigure() has formed the group anew since.
  void check_group() const;
  // Call this before each forward pass. Includes check_group().
  void before_forward();
  // `synchronises` returns whether passes that begin now send anything. The reducer calls it before each forward pass,
  // and again at the start of each backward pass, in the thread of that pass. A pass sends nothing if both answers are
  // no. Null: all passes send. Every rank must give the same answers.
  void set_synchronises(std::function<bool()> synchronises);
  // Call this before `synchronises` begins to answer no. If no graph of the last forward pass is left, its backward
  // pass can no longer come, and the reducer forgets this forward pass. It would otherwise make the next backward pass
  // send.
  void forget_lost_forward();
  // Call this after a forward pass that a backward pass should follow. If the backward pass follows on other ranks and
  // not on this one, the next pass throws on all ranks. Not `training`: the backward pass may follow or not.
  void after_forward(bool training = true);
  // Ends a pass that an exception has interrupted, before other collectives of its group follow.
  void settle();
  // Takes back after_forward() for all forward passes so far, of all reducers of this process. Call it on all ranks.
  static void forget_forward();
  // The name of a parameter that another reducer of this process reduces too; empty: there is none.
  std::string shared_parameter() const;
  // Whether the caller is inside the backward pass of the last forward pass: activation checkpointing calls the model
  // there again. In that case before_forward() does nothing.
  bool is_recomputing() const;
  // Whether only a part of the last forward pass's backward pass is over, so that another part may follow. LibTorch
  // runs some backward passes inside a backward pass in other threads, where each ends as a part: passes more than 60
  // deep inside one another, and segments on several devices.
  bool continues_pass() const;
  // Replaces the default all-reduce; null restores it. The next pass compares the hooks of all ranks and throws on all
  // of them if they differ.
  void set_comm_hook(std::shared_ptr<CommHook> hook);
  // For a rank without more inputs: takes part in a pass of other ranks with zeros. Collective with their pass. Clear
  // the gradients before the call: an undefined gradient becomes the mean if another rank has that gradient, a defined
  // gradient may hold values of any pass.
  void shadow_pass();
  // Takes part in a pass of the other ranks, on a rank that makes no pass. The gradients that the parameters have, such
  // as the sum of passes without synchronisation, take part; a parameter without a gradient counts as zero. Collective
  // with the other ranks' pass.
  void pass_without_input();
  // The rank whose buffers all ranks get.
  void set_buffer_source(int rank);
  // From the next pass on, gradients become their mean over ranks times `scale`, which must be the same on every rank.
  // 1 at first.
  void set_gradient_scale(double scale);
  // `callback` runs at the start of every pass that sends, in the thread of the backward pass, before its first
  // collective. It must not call this reducer, except continues_pass, set_buffer_source, set_gradient_scale and the
  // statistics below.
  void set_before_pass(std::function<void()> callback);
  // `callback` returns the tensors that the program has put in the place of the constructor's buffers since its last
  // call, one for each, alike in all but values and strides; nothing, if there are none. The reducer calls it before it
  // sends buffers, and in follow_buffers(). It must not call this reducer.
  void set_replaced_buffers(std::function<std::vector<torch::Tensor>()> callback);
  void follow_buffers();

  // Bytes of the buckets of this rank.
  std::size_t bucket_bytes() const;
  // How many gradients of the last pass were computed straight in their bucket, and how many there were.
  struct PlacementStats {
    std::size_t in_place;
    std::size_t gradients;
  };
  PlacementStats placement() const;
  // Bytes of gradients that this rank has given to collectives: the buckets, or what the hook made of them, and sparse
  // gradients. How often these bytes cross the memory or the network is up to the backend. Not counted: buffers, and
  // the numbers by which the ranks tell one another which parameters had a gradient.
  struct SentBytes {
    std::size_t last_pass;
    std::size_t total;
  };
  SentBytes sent() const;
  // Seconds of communication.
  struct CommTime {
    // In the last pass, from the start of the first collective to the end of the last one. In PyTorch's logging data of
    // DDP this is backward_comm_time, in nanoseconds.
    double backward_comm_time = 0;
    // The part of backward_comm_time in which the pass could do nothing else: starting collectives, communication
    // hooks, and waiting for collectives that were not done when the last gradient was there. Waiting for slower ranks
    // is part of it. The rest of backward_comm_time has overlapped with the computation of gradients.
    double exposed_comm_time = 0;
    // exposed_comm_time of all passes.
    double total_exposed = 0;
  };
  // Empty for parameters on a GPU or another device, where the process does not wait for collectives. Zeros in a group
  // of one rank, which has no collectives. Measuring costs two readings of the clock for each bucket.
  std::optional<CommTime> comm_time() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
