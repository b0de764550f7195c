// Relay: carries the output of a group's workers to the launcher's own streams and to log files.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/process_tree.h"
#include "launch/signal_watch.h"
#include "launch/tail.h"
#include "launch/worker_stream.h"
#include "lockstep/base/deadline.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {

// The launcher's stdout and stderr; one console when both are the same file or terminal. Outlives all groups.
class Consoles {
 public:
  Consoles();
  Console& out() { return out_; }
  Console& err() { return same_ ? out_ : err_; }
  bool same() const { return same_; }

  void flush();
  void add_to(std::vector<pollfd>& polled);
  bool has_pending() { return out().has_pending() || err().has_pending(); }
  // Blocks until all is written, its reader has gone, a signal comes or the deadline passes.
  void flush_all(SignalWatch& signals, Deadline deadline);
  // Waits once for room or a signal; false when one should not go on.
  bool wait_for_room(SignalWatch& signals, Deadline deadline);

 private:
  Console out_;
  Console err_;
  bool same_;
};

class Relay {
 public:
  explicit Relay(Consoles& consoles) : consoles_(consoles) {}

  // Decides where the worker's output goes, makes the pipes and files, and fills in the command's descriptors.
  Status connect(const JobOptions& options, const JobFacts& job, int local_rank, Command& command);
  // Once the workers run: closes what they have copies of.
  void started() { workers_ends_.clear(); }

  void add_to(std::vector<pollfd>& polled);
  // Moves what is there; shows partial lines that are due.
  void serve();
  // The time until a partial line is due, in milliseconds; -1: none.
  int timeout_ms() const;
  // Once no worker lives: relays what is left in the pipes. Blocks while our own reader is slow; a signal or the
  // deadline ends it.
  void drain(SignalWatch& signals, Deadline deadline);

  // The end of a worker's stderr; nullopt when it did not pass through here.
  std::optional<std::vector<std::string>> stderr_tail(int local_rank) const;

 private:
  struct Source {
    std::unique_ptr<Tail> tail;  // of what is read from the pipe
    std::string path;            // of the file, when stderr goes only there
  };
  Status connect_stream(const JobOptions& options, const JobFacts& job, int local_rank, Streams stream, int& fd);
  Status add_pipe(Fd log_file, WorkerStream::Settings settings, int& fd);

  Consoles& consoles_;
  std::vector<Fd> workers_ends_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  std::vector<Source> stderr_;  // by local rank
};

}  // namespace lockstep::launch
