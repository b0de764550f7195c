// Writing the launcher's output without waiting for terminals and disks that stand still.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// A thread for system calls on the launcher's output. A terminal or a file server that stands still may keep such a
// call forever. So the thread can be interrupted, and left if even that does not end it.
class OutputThread {
 public:
  // The thread receives no signals that are meant for the launcher, nor those that a write can cause (SIGPIPE, SIGXFSZ,
  // SIGTTOU in a background job). `body` owns what it uses: it may outlive everything else.
  static Result<OutputThread> start(std::function<void()> body);

  // To call once, when `body` has been told to return. Interrupts its system calls (EINTR) until it has returned. After
  // 1 s it leaves the thread.
  void end() const;

 private:
  explicit OutputThread(pthread_t thread) : thread_(thread) {}

  pthread_t thread_;
};

// A file whose writes may fail (a full disk, a quota, a size limit) while the job goes on. Lost lines are counted, and
// the next write that succeeds is preceded by a line that says how many are missing.
class LossyFile {
 public:
  // Blocks like write(). After a signal it stops if `*stop` is set (nullptr: it goes on). Returns 0, or the errno when
  // some of the bytes were not written (EINTR: stopped).
  int write(int fd, std::string_view bytes, const std::atomic<bool>* stop = nullptr);

 private:
  std::size_t missing_lines_ = 0;
  int reason_ = 0;  // 0: nothing is missing
};

// Writes to a descriptor in its own thread: a reader that stops reading (a terminal after Ctrl-S, a pager) blocks only
// that thread. A non-blocking descriptor is not possible: the flag belongs to the open file, which the launcher shares
// with the user's shell, and poll() does not say how much a terminal accepts. Thread-safe.
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
