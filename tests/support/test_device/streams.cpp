#include "support/test_device/streams.h"

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "support/test_device.h"

namespace lockstep::test::device {

struct Marker {
  c10::Stream stream;
  bool done = false;  // under the lock of all queues
};

namespace {

constexpr c10::StreamId kPoolStreams = 8;

struct Queues {
  // One lock for all streams, held while work is done: work of one stream may wait for that of another, and may free
  // tensors, which waits too.
  std::recursive_mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::deque<std::function<void()>>> of_stream;
};

Queues& queues() {
  static auto* const all = new Queues;  // streams may be used until the process ends
  return *all;
}

std::deque<std::function<void()>>& queue_of(c10::Stream stream) {
  return queues().of_stream[{stream.device_index(), stream.id()}];
}

// Does the oldest work of the stream. False if there is none.
bool step(c10::Stream stream) {
  auto& queue = queue_of(stream);
  if (queue.empty()) return false;
  const std::function<void()> work = std::move(queue.front());
  queue.pop_front();
  work();
  return true;
}

std::array<c10::StreamId, kTestDevices>& current_ids() {
  thread_local std::array<c10::StreamId, kTestDevices> ids{};
  return ids;
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, test_device(device), id);
}

}  // namespace

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, current_ids().at(static_cast<std::size_t>(device)));
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto& id = current_ids().at(static_cast<std::size_t>(stream.device_index()));
  return stream_of(stream.device_index(), std::exchange(id, stream.id()));
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return stream_of(device, 0);
}

c10::Stream next_stream(c10::DeviceIndex device) {
  static std::atomic<c10::StreamId> next{0};
  return stream_of(device, 1 + next++ % kPoolStreams);
}

void enqueue(c10::Stream stream, std::function<void()> work) {
  const std::lock_guard lock(queues().mutex);
  queue_of(stream).push_back(std::move(work));
}

MarkerPtr mark(c10::Stream stream) {
  const std::lock_guard lock(queues().mutex);
  auto marker = std::make_shared<Marker>(Marker{stream});
  queue_of(stream).push_back([marker] { marker->done = true; });
  return marker;
}

c10::Stream stream_of(const MarkerPtr& marker) {
  return marker->stream;
}

void enqueue_wait(c10::Stream stream, MarkerPtr marker) {
  enqueue(stream, [marker = std::move(marker)] { finish(marker); });
}

void finish(c10::Stream stream) {
  const std::lock_guard lock(queues().mutex);
  while (step(stream)) {
  }
}

void finish(const MarkerPtr& marker) {
  const std::lock_guard lock(queues().mutex);
  while (!marker->done && step(marker->stream)) {
  }
}

void finish_device(c10::DeviceIndex device) {
  const std::lock_guard lock(queues().mutex);
  for (c10::StreamId id = 0; id <= kPoolStreams; ++id) finish(stream_of(device, id));
}

}  // namespace lockstep::test::device
