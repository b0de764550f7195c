// Streams of a device: work beside the stream that is current, and waits between streams.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What `later` gets from now on waits for what `first` has now. The program does not wait.
inline void wait_for_stream(c10::Stream later, c10::Stream first) {
  if (later == first) return;
  c10::Event event(first.device_type());
  event.record(first);
  event.block(later);
}

// The memory of a tensor that was made on another stream is not used again before `stream` has done what it has now.
inline void keep_for_stream(const at::Tensor& tensor, c10::Stream stream) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

// A stream beside the current one, for work that need not hold up what the current one gets next.
class SideStream {
 public:
  // One of LibTorch's pool, which others may use too.
  explicit SideStream(c10::Device device)
      : SideStream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}
  explicit SideStream(c10::Stream stream) : stream_(stream) {}

  c10::Stream stream() const { return stream_; }

  // Runs `enqueue` with this stream as the current one. Its work begins after what the caller's stream has now.
  template <typename Enqueue>
  auto run(Enqueue enqueue) const {
    wait_for_stream(stream_, current_stream(stream_.device()));
    const c10::StreamGuard guard(stream_);
    return enqueue();
  }
  // What the caller's stream gets from now on waits for all that.
  void join() const { wait_for_stream(current_stream(stream_.device()), stream_); }

 private:
  c10::Stream stream_;
};

}  // namespace lockstep
