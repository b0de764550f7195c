// Writes to a descriptor in its own thread: a reader that stops reading (a terminal after Ctrl-S, a pager) blocks only
// that thread. A non-blocking descriptor is not possible: the flag belongs to the open file, which the launcher shares
// with the user's shell, and poll() does not say how much a terminal accepts.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "launch/output/output_thread.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Thread-safe.
class BackgroundWriter {
 public:
  // The caller keeps `fd` open as long as this object lives.
  static Result<std::unique_ptr<BackgroundWriter>> start(int fd);
  // Interrupts a write that blocks. Unwritten bytes are dropped. Waits for up to 1 s.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  int fd() const;
  void add(std::string_view bytes);
  // The number of bytes that were added and are not written yet.
  std::size_t pending() const;
  // The reader has closed its end: everything is dropped.
  bool closed() const;
  // The errno of a failed write, once for each errno; 0: no new error.
  int take_error();

  // Readable after a write succeeded or failed since the last clear_event().
  int event_fd() const;
  void clear_event();
  // False when something is still pending at the deadline.
  bool wait_until_written(Deadline deadline);

 private:
  struct State;
  BackgroundWriter(std::shared_ptr<State> state, OutputThread thread) : state_(std::move(state)), thread_(thread) {}

  const std::shared_ptr<State> state_;  // shared with the thread
  const OutputThread thread_;
};

}  // namespace lockstep::launch
