// Consoles: the launcher's own output streams.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "launch/output/console.h"
#include "launch/process/signal_watch.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// The launcher's stdout and stderr; a single console if both are the same file or terminal. Outlives all worker groups.
// While it lives, the launcher's log messages go there too.
class Consoles {
 public:
  static Result<std::unique_ptr<Consoles>> open();
  ~Consoles();
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;

  Console& out() { return *out_; }
  Console& err() { return err_ != nullptr ? *err_ : *out_; }
  bool same() const { return err_ == nullptr; }

  void flush();
  void add_to(std::vector<pollfd>& polled);
  // Handles the writers' events. Reports an error of stdout on stderr.
  void serve();
  // Blocks until all output is written or its reader has closed. Gives up at a signal, at the deadline, and if no
  // reader has taken anything for `stall_timeout`. A pipe then still holds as much of the rest as it can.
  void finish(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout);

 private:
  Consoles(std::unique_ptr<Console> out, std::unique_ptr<Console> err) : out_(std::move(out)), err_(std::move(err)) {}
  std::size_t pending();
  // Returns whether all output is written.
  bool wait_for_readers(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout);

  std::unique_ptr<Console> out_;
  std::unique_ptr<Console> err_;  // null: out_ is used
};

}  // namespace lockstep::launch
