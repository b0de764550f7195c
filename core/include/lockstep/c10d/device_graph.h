// DeviceGraph: work of a device that is recorded once, and repeated by one call. On CUDA it is a CUDA graph.
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
  // Calls `enqueue` with the graph's own stream as the current one. That stream waits for the work of the caller's
  // stream, and the caller's stream then waits for the graph's stream.
  virtual void run(const Enqueue& enqueue) = 0;
  // The same, but the enqueued work is recorded, in place of an earlier recording, and not done. Blocks until the
  // device has nothing to do. If `enqueue` throws, or waits for the device, there is no recording.
  virtual void capture(const Enqueue& enqueue) = 0;
  // Whether there is a recording. There is none at first, after a capture() that has thrown, and once any group of NCCL
  // was destroyed, whether its collectives are in the recording or not.
  virtual bool has_recording() const = 0;
  // Forgets the recording, and gives its memory back.
  virtual void drop() = 0;
  // Does the recorded work on the caller's stream. Throws without a recording.
  virtual void replay() = 0;
};

// Null for a device without graphs, such as the CPU. Throws kUnsupported where this build, or what is installed of it,
// has no part for CUDA (liblockstep_nccl.so).
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

}  // namespace lockstep
