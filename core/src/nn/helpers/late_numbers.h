// LateNumbers: numbers of a device that the program reads later, when the device has long been done with them.
#pragma once

#include <c10/core/Event.h>
#include <torch/types.h>

#include <vector>

namespace lockstep::nn_detail {

class LateNumbers {
 public:
  // Enqueues the copy of `numbers`, [n] of double on a device, behind what the current stream has.
  explicit LateNumbers(const torch::Tensor& numbers);
  // Waits until the copy is done.
  std::vector<double> read();

 private:
  torch::Tensor host_;
  c10::Event copied_;
};

}  // namespace lockstep::nn_detail
