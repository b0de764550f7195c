// HookChannel: the collectives of a hook for one bucket. Counts the bytes that they get.
#pragma once

#include "backend.h"
#include "lockstep/nn/comm_hook.h"

namespace lockstep::nn_detail {

class HookChannel {
 public:
  // `group` null: that of the bucket.
  HookChannel(const ProcessGroup& group, GradBucket& bucket)
      : backend_(group ? group : bucket.group(), bucket.buffer().device()), bucket_(bucket) {}

  const Backend& backend() const { return backend_; }

  c10::intrusive_ptr<c10d::Work> start_mean(const torch::Tensor& flat) const {
    bucket_.add_sent(flat.nbytes());
    return backend_.start_mean(flat);
  }
  c10::intrusive_ptr<c10d::Work> start_sum(const torch::Tensor& flat) const {
    bucket_.add_sent(flat.nbytes());
    return backend_.start_sum(flat);
  }

 private:
  Backend backend_;
  GradBucket& bucket_;
};

}  // namespace lockstep::nn_detail
