// Reducer: makes the gradients of a model their mean over all ranks, during the backward pass.
//
// DistributedDataParallel is the way to use it; on its own it serves training loops that have no torch::nn::Module.
//
// Gradients lie in buckets, flat buffers in memory that the ranks share. A gradient is computed straight into its place
// where its allocation can be foreseen (see docs/architecture.md, "Gradients"), else copied there once, while still in
// cache; `parameter.grad()` is a view of that place. Once all gradients of a bucket are there its all-reduce starts,
// while the backward pass goes on. At the end of every backward pass all of them are over and each gradient is the
// mean.
//
// The first pass finds out in which order gradients become ready; the buckets are built at its end, from rank 0's
// order. Parameters without a gradient on some ranks count as zero there; without one on any rank their gradients stay
// as they are.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/c10d/process_groups.h"
#include "lockstep/nn/comm_hook.h"

namespace lockstep {

// A parameter or a buffer.
struct NamedParameter {
  std::string name;
  torch::Tensor tensor;
};

struct ReducerOptions {
  // Largest bucket, MiB. Larger ones need fewer calls, smaller ones start earlier.
  double bucket_cap_mb = 25;
  // The first bucket to be ready is smaller, so that communication starts early, MiB.
  double first_bucket_mb = 1;
  // Off: gradients are tensors of their own, copied out of the buckets after each pass (one more copy, twice the
  // memory).
  bool gradient_as_bucket_view = true;
  // On: a pass in which parameters become ready that the first pass did not use, or the other way round, is an error
  // that names them. Off: such passes work.
  bool static_graph = false;
};

class Reducer {
 public:
  // Collective: all ranks pass the same parameters in the same order (checked by DistributedDataParallel). Those that
  // require no gradient are left alone. `buffers` are sent from rank 0 to all in every pass that synchronises; may be
  // empty. All keep their sizes, dtypes and devices from here on: a backward pass that finds others throws, naming what
  // has changed.
  Reducer(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Throws already before a pass when a parameter or buffer has other sizes now.
  void check_sizes() const;
  // Call before each forward pass: says whether the backward pass that follows synchronises.
  void before_forward(bool synchronise);
  // Replaces the default all-reduce. Null: back to it.
  void set_comm_hook(std::shared_ptr<CommHook> hook);
  // What a pass of other ranks needs from a rank that has no more inputs: takes part with zeros. `buffer_source` is the
  // rank whose buffers all get.
  void shadow_pass();
  void set_buffer_source(int rank);
  // Called at the start of every pass that synchronises, in the thread of the backward pass, before its first
  // collective. It must not call this reducer, except set_buffer_source.
  void set_before_pass(std::function<void()> callback);

  // Bytes of the buckets of this rank.
  std::size_t bucket_bytes() const;
  // Gradients that were computed straight into their bucket in the last pass, out of how many.
  struct PlacementStats {
    std::size_t in_place;
    std::size_t gradients;
  };
  PlacementStats placement() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
