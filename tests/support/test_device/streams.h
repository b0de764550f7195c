// The streams of the test device: queues whose work is done by whoever waits for it, and not before.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace lockstep::test::device {

// A place in a stream: done when everything before it is done. What an event records.
struct Marker;
using MarkerPtr = std::shared_ptr<Marker>;

// The calling thread's.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);  // returns the one before
c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream next_stream(c10::DeviceIndex device);  // never the default one

// All thread-safe. Work must not throw unless the program is wrong.
void enqueue(c10::Stream stream, std::function<void()> work);
MarkerPtr mark(c10::Stream stream);
c10::Stream stream_of(const MarkerPtr& marker);
void enqueue_wait(c10::Stream stream, MarkerPtr marker);
void finish(c10::Stream stream);
void finish(const MarkerPtr& marker);
void finish_device(c10::DeviceIndex device);

}  // namespace lockstep::test::device
