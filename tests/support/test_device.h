// A device without a GPU: four devices, "test:0" to "test:3", made with LibTorch's interface for devices of other
// makers (PrivateUse1). Paths that were written for CUDA run on it, on every machine.
//
// It is strict where a GPU is strict, and always in the same way:
//   - Its memory cannot be touched through a tensor's data_ptr(): that address faults. Only the device's own copies and
//     kernels know where the bytes are. Fresh memory holds kFreshByte.
//   - Streams are lazy. A copy within a device, one with non_blocking from or to page-locked memory, and what fills a
//     tensor with one value wait in their stream until somebody waits for that stream: a synchronisation, an event, a
//     later kernel on the stream. Who forgets to wait sees old bytes.
//   - Freed memory waits only for the stream that it was allocated on, and for those of record_stream. A copy on
//     another stream that comes later is an error.
//   - A kernel takes tensors of one device; of the CPU it takes scalars and indices only.
//
// Kernels are those of the CPU, on copies, and draw from the CPU's generator: a result is, bit for bit, that of the
// CPU. Not there: sparse, quantized and nested tensors. Autocast knows a few operations only.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "support/device.h"

namespace lockstep::test {

constexpr std::uint8_t kFreshByte = 0xCB;

// Copies that a program asked for. The copies of kernels and of memory that is resized are not among them.
struct Copies {
  std::int64_t count = 0;
  std::int64_t bytes = 0;

  bool operator==(const Copies&) const = default;
};
struct Traffic {
  Copies from_host = {};
  Copies to_host = {};
  Copies from_peer = {};  // from another device
  Copies pinned = {};     // those from and to the host whose host memory was page-locked
  Copies enqueued = {};   // the part of `pinned` that did not block

  bool operator==(const Traffic&) const = default;
};

// Of one device since the last reset_traffic(), or since the start. Thread-safe.
Traffic traffic(int device);
void reset_traffic();  // of all devices

// How often the program has waited for a device since then: for a stream, an event, a copy that blocks. Thread-safe.
int host_waits(int device);

// Blocks of memory that are allocated on a device. Thread-safe.
int allocated_blocks(int device);

}  // namespace lockstep::test
