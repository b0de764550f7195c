// PassReport: what the ranks tell one another at the end of a pass, as one small mean of ones and zeros.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "nn/device_backend.h"

namespace lockstep::nn_detail {

// On a device no rank waits for the report in a pass like the one before: the numbers that this rank has sent are kept
// there, and those of all ranks are read only by a rank that needs to know. So there the report tells only which
// gradients were used, and every other setter does nothing.
class PassReport {
 public:
  PassReport(const DeviceBackend& backend, std::size_t parameters, bool tells_buffers);

  // Whether this rank has a gradient of the parameter.
  void set_used(std::size_t parameter, bool here) { set(parameter, here); }
  // Whether this rank must send the buffers again.
  void set_buffers_changed(bool here) {
    if (tells_buffers_) set(parameters_, here);
  }
  // Whether this rank has left the pass by an exception.
  void set_interrupted(bool here) {
    if (on_cpu_) set(interrupted_slot(), here);
  }
  // Whether this rank's own pass began under no_sync. `known` off: it may be either.
  void set_guarded(bool known, bool here) {
    if (!on_cpu_) return;
    set(guarded_slot(), known && here);
    set(guarded_slot() + 1, known && !here);
  }
  // How many forward passes this rank may have dropped (ForwardPasses): at least, at most. `known` off: any number.
  void set_dropped(bool known, std::size_t least, std::size_t most);

  // Collective, after everything has been set.
  void start();
  // After start(). On a device the current stream waits, if the backend works by streams.
  void wait() { std::exchange(work_, nullptr)->wait(); }
  // Forgets a start() that was not waited for.
  void abandon() { work_.reset(); }
  bool under_way() const { return work_ != nullptr; }

  // After wait(), until the next start(). On a device, used_anywhere() waits for the device if this rank does not have
  // the gradient itself.
  bool used_anywhere(std::size_t parameter) { return anywhere(parameter); }
  bool buffers_changed_anywhere() { return tells_buffers_ && anywhere(parameters_); }
  bool interrupted_anywhere() { return on_cpu_ && anywhere(interrupted_slot()); }
  // Whether the pass began under no_sync on some ranks, and not on others.
  bool guards_differ() { return on_cpu_ && anywhere(guarded_slot()) && anywhere(guarded_slot() + 1); }
  // Whether no number of dropped forward passes is possible on every rank.
  bool dropped_differ();

 private:
  // A rank tells in so many numbers how many forward passes it may have dropped.
  static constexpr std::size_t kDroppedSlots = 16;

  std::size_t first_dropped_slot() const { return parameters_ + (tells_buffers_ ? 1 : 0); }
  std::size_t interrupted_slot() const { return first_dropped_slot() + kDroppedSlots; }
  std::size_t guarded_slot() const { return interrupted_slot() + 1; }
  void set(std::size_t i, bool here) { own_.mutable_data_ptr<float>()[i] = here ? 1.0F : 0.0F; }
  bool anywhere(std::size_t i);
  void send_own();

  const DeviceBackend& backend_;
  const std::size_t parameters_;
  const bool tells_buffers_;
  const bool on_cpu_;
  torch::Tensor own_;        // flat, on the CPU; on the CPU's backend the mean over ranks takes its place
  torch::Tensor sent_;       // `own_` as it is in `on_device_`
  torch::Tensor on_device_;  // undefined without a device
  torch::Tensor mean_;
  torch::Tensor read_;  // `mean_` on the CPU; undefined until somebody has asked
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace lockstep::nn_detail
