// Writes to a descriptor in a thread of its own: a reader that stands still (a terminal after Ctrl-S, a pager) stops
// that thread and nobody else. Non-blocking descriptors are no way: the flag belongs to the open file, which the
// launcher shares with the user's shell, and poll() does not tell how much a terminal takes.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Thread-safe.
class BackgroundWriter {
 public:
  // `fd` stays the caller's, and open for as long as this object lives.
  static Result<std::unique_ptr<BackgroundWriter>> start(int fd);
  // Ends a write that blocks. What has not been written is dropped.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  int fd() const;
  void add(std::string_view bytes);
  // Bytes that were added and not written.
  std::size_t pending() const;
  // The reader has gone: everything is dropped.
  bool closed() const;
  // Why the file has refused something (errno), once for each reason; 0: it has not.
  int take_refusal();

  // Readable when something was written, or could not be, since the last clear_news().
  int news_fd() const;
  void clear_news();
  // False when something is still pending at the deadline.
  bool wait_until_written(Deadline deadline);

 private:
  struct State;
  BackgroundWriter(std::shared_ptr<State> state, pthread_t thread) : state_(std::move(state)), thread_(thread) {}
  static void* run(void* state);

  const std::shared_ptr<State> state_;  // shared with the thread
  const pthread_t thread_;
};

}  // namespace lockstep::launch
