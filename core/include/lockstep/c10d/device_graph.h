// DeviceGraph: work of a device that is recorded once and done again by one call: a CUDA graph.
//
// Most programs use it through lockstep/nn/captured_step.h.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace lockstep {

// Not thread-safe. Everything throws c10::Error where the device refuses.
class DeviceGraph {
 public:
  using Enqueue = std::function<void()>;

  virtual ~DeviceGraph() = default;
  // Calls `enqueue` with the graph's own stream as the current one. That stream waits for what the caller's stream has,
  // and the caller's stream then waits for it.
  virtual void run(const Enqueue& enqueue) = 0;
  // The same, but what it enqueues is recorded, in place of an earlier recording, and not done. Blocks until the device
  // has nothing to do. If `enqueue` throws, or waits for the device, there is no recording.
  virtual void capture(const Enqueue& enqueue) = 0;
  // False at first, after a capture() that has thrown, and once a group with collectives in the recording, or any other
  // group of NCCL, was destroyed.
  virtual bool has_recording() const = 0;
  // Forgets the recording, and gives its memory back.
  virtual void drop() = 0;
  // Does what was recorded, on the caller's stream. Throws without a recording.
  virtual void replay() = 0;
};

// Null for a device without graphs, such as the CPU. Throws kUnsupported where this build, or what is installed of it,
// has no part for CUDA (liblockstep_nccl.so).
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

}  // namespace lockstep
