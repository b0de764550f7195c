// GradientBuckets: flat tensors in memory that the ranks share, in which gradients lie side by side.
//
// They are built once, at the end of the first pass, and last until the reducer ends. Each gradient moves to its place,
// or autograd computes it there (gradient_placement.h).
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/call_place.h"
#include "gradient_placement.h"
#include "lockstep/nn/reducer.h"
#include "nn/device_backend.h"
#include "reduced_parameters.h"

namespace lockstep::nn_detail {

struct Bucket {
  torch::Tensor buffer;              // flat
  std::vector<std::size_t> members;  // parameters, in the order of their places
  TextNumber label;                  // names them in errors
};

class GradientBuckets {
 public:
  GradientBuckets(const DeviceBackend& backend, ReducedParameters& parameters, const ReducerOptions& options);

  // `order`: all parameters, in the order in which their gradients become ready.
  void build(const std::vector<std::size_t>& order);
  std::size_t size() const { return buckets_.size(); }
  const Bucket& operator[](std::size_t index) const { return buckets_[index]; }
  std::size_t bytes() const;
  std::size_t bucket_of(std::size_t parameter) const { return places_[parameter].bucket; }
  // The gradient's place, in the shape of the parameter.
  const torch::Tensor& view(std::size_t parameter) const { return places_[parameter].view; }

  // From begin_placing(), in the thread of the forward pass, to end_placing(), autograd's allocations in backward
  // passes may get the places of gradients, except those in sealed buckets. begin_placing() breaks all seals.
  void begin_placing();
  void end_placing();
  // Records which of these allocations the gradient of a parameter is.
  void learn(std::size_t parameter);
  void seal(std::size_t bucket) { set_sealed(bucket, true); }

  // How a gradient has come to its place.
  enum class Placed {
    kZeros,    // there is no gradient: zeros are there
    kInPlace,  // autograd has computed the gradient there
    kCopied,
    kToCopy,  // it is not there yet: on a device, copy() brings all gradients of a bucket together
  };
  // `incoming` is what autograd has made the gradient of; undefined after the hooks. `counts` off: zeros take the
  // gradient's place.
  Placed place(std::size_t parameter, bool counts, const torch::Tensor& incoming);
  void copy(const std::vector<std::size_t>& parameters);
  // No tensor of the program lies in the bucket from now on: gradients are copied out of it, and the bucket moves to
  // other memory if other tensors are in it.
  void leave_to_program(std::size_t bucket);

  // The buckets hold the means. Each gradient for which `is_used` says yes becomes its mean.
  void hand_out(const std::function<bool(std::size_t parameter)>& is_used);
  // Drops the gradients that lie in a bucket which is still being reduced: they may change, to unknown values.
  void drop_gradients(std::size_t bucket);
  // No tensor gets a place from now on.
  void detach();

 private:
  struct Place {
    std::size_t bucket = 0;
    torch::Tensor view;
    std::shared_ptr<Slot> slot;  // null: autograd cannot compute the gradient there
    // The gradient shares memory with a tensor that autograd still reads, so it must not lie in the bucket.
    bool shares_memory = false;
  };

  TextNumber label_of(const std::vector<std::size_t>& members) const;
  void assign_views(const Bucket& bucket);
  void relocate(Bucket& bucket);
  void copy_to_view(std::size_t parameter);
  void set_sealed(std::size_t bucket, bool sealed);
  bool is_view_after_pass(std::size_t parameter) const {
    return options_.gradient_as_bucket_view && !parameters_[parameter].is_shared();
  }

  const DeviceBackend& backend_;
  ReducedParameters& parameters_;
  const ReducerOptions& options_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;                   // one for each parameter
  std::shared_ptr<GradientPlacement> learner_;  // null: all gradients are copied
};

}  // namespace lockstep::nn_detail
