// Relay: carries the output of a group's workers to the launcher's own streams and to log files.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job/agent.h"
#include "launch/job/worker_environment.h"
#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/output/tail.h"
#include "launch/output/worker_stream.h"
#include "launch/process/process_tree.h"

namespace lockstep::launch {

class Relay {
 public:
  // `logs`: nullptr if no stream goes to a file. Waits for files end when `signals_fd` becomes readable.
  Relay(Consoles& consoles, LogFiles* logs, int signals_fd)
      : consoles_(consoles), logs_(logs), signals_fd_(signals_fd) {}
  ~Relay() { started(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Decides where the worker's output goes, opens pipes, pseudo-terminals and files, and sets the command's
  // descriptors. Sets TERM=dumb if stdout is a pseudo-terminal: its lines get a prefix or go to a file. A worker whose
  // stderr is the launcher's own terminal keeps TERM, because the user looks at this stderr. Waits for a folder that
  // does not answer until a signal comes: kAborted. The worker may take the place of an earlier one.
  Status connect(const JobOptions& options, const JobSpec& job, int local_rank, Command& command);
  // To call when the workers run: closes the descriptors of which they have copies.
  void started();

  void add_to(std::vector<pollfd>& polled);
  // Reads all streams and shows partial lines that are due.
  void serve();
  // The workers, by local rank, that have written to their pseudo-terminals after the reader of the launcher's stdout
  // had left. They are to get SIGPIPE. A worker is named until told() says that the signal was sent.
  std::vector<int> writers_in_vain() const;
  void told(int local_rank) { terminals_.at(local_rank)->told(); }
  // When the next partial line is due; never: there is none.
  Deadline next_due() const;
  // To call when no worker lives: relays the rest of all streams.
  void drain();

  // The end of a worker's stderr; nullopt if the launcher did not see it. Gives up on its file as LogFiles does.
  std::optional<Tail> stderr_tail(int local_rank) const;

 private:
  struct Source {
    std::unique_ptr<Tail> tail;  // if the launcher reads stderr
    std::string path;            // if stderr goes to this file only
    std::uint64_t begin = 0;     // where this worker's part of the file begins: after that of the worker it replaces
  };
  struct OpenFile {
    std::string path;
    Fd fd;
    std::uint64_t size = 0;
  };
  Result<OpenFile> open_log(const JobOptions& options, const JobSpec& job, int rank, const char* stream);
  Status connect_stream(const JobOptions& options, const JobSpec& job, int local_rank, Streams stream,
                        Command& command);
  // Returns the end from which a worker's output is read. The worker's own end is then the last of workers_ends_.
  // `settings.terminal` asks for a pseudo-terminal instead of a pipe, and becomes false where the system gives none.
  Result<Fd> make_channel(WorkerStream::Settings& settings);

  Consoles& consoles_;
  LogFiles* const logs_;
  const int signals_fd_;
  std::vector<Fd> workers_ends_;
  std::vector<Fd> workers_files_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  std::map<int, WorkerStream*> terminals_;  // by local rank: the streams_ that are read from pseudo-terminals
  bool said_no_terminals_ = false;
  std::string_view what_begins_;                      // for the log files of the worker that is being connected
  std::map<int, Source> stderr_;                      // by local rank
  std::vector<std::unique_ptr<Tail>> earlier_tails_;  // of replaced workers, whose streams may have more to say
};

}  // namespace lockstep::launch
