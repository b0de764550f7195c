// Relay: carries the output of a group's workers to the launcher's own streams and to log files.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/console.h"
#include "launch/process_tree.h"
#include "launch/signal_watch.h"
#include "launch/tail.h"
#include "launch/worker_environment.h"
#include "launch/worker_stream.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launch {

// The launcher's stdout and stderr; one console when both are the same file or terminal. Outlives all groups. While it
// lives, log messages of the launcher go there too.
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
  // Takes note of what has become of the output.
  void serve();
  // Blocks until all is written or its reader has gone; ends by a signal, at the deadline, and when no reader has taken
  // anything for the time of `patience`. A pipe's reader then finds the rest in the pipe, as far as that can hold it.
  void finish(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds patience);

 private:
  Consoles(std::unique_ptr<Console> out, std::unique_ptr<Console> err) : out_(std::move(out)), err_(std::move(err)) {}
  std::size_t pending();
  // Whether all is written.
  bool wait_for_readers(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds patience);

  std::unique_ptr<Console> out_;
  std::unique_ptr<Console> err_;  // null: the same as out
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
  // When the next partial line is due; never: there is none.
  Deadline next_due() const;
  // Once no worker lives: relays what is left in the pipes.
  void drain();

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
