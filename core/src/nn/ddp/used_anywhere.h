// UsedAnywhere: which parameters have a gradient, on this rank and on any rank. One number for each.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "nn/backend.h"

namespace lockstep::nn_detail {

// On a device nothing waits for it in a pass like the one before: the numbers that this rank has sent are kept there,
// and those of all ranks are read only by a rank that needs to know.
class UsedAnywhere {
 public:
  UsedAnywhere(const Backend& backend, std::size_t count);

  void set(std::size_t i, bool here) { own_.mutable_data_ptr<float>()[i] = here ? 1.0F : 0.0F; }
  // Collective, after every number has been set.
  void start();
  // Forgets a start() that was not waited for.
  void abandon();
  // After start(). On a device the current stream waits, if the backend works by streams.
  void wait();
  bool under_way() const { return work_ != nullptr; }
  // After wait(), until the next start(). Waits for the device if this rank does not have the gradient itself.
  bool anywhere(std::size_t i);

 private:
  void send_own();

  const Backend& backend_;
  torch::Tensor own_;        // [count], on the CPU; on the CPU's backend the mean over ranks takes its place
  torch::Tensor sent_;       // `own_` as it is in `on_device_`
  torch::Tensor on_device_;  // undefined without a device
  torch::Tensor mean_;
  torch::Tensor read_;  // `mean_` on the CPU; undefined until somebody has asked
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace lockstep::nn_detail
