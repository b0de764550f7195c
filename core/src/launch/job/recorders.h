// The flight recorders of one attempt's workers (flight/recorder.h): their files, and copies of them as dumps.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "launch/job/agent.h"
#include "launch/job/worker_environment.h"
#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/process/process_tree.h"
#include "launch/process/signal_watch.h"

namespace lockstep::launch {

class Recorders {
 public:
  // `logs`: nullptr if no stream goes to a file. The arguments outlive this.
  Recorders(const JobOptions& options, const JobSpec& job, LogFiles* logs, SignalWatch& signals)
      : options_(options), job_(job), logs_(logs), signals_(signals) {}
  // Removes the files. If this process is killed, its supervisors do (ErrorFiles).
  ~Recorders();
  Recorders(const Recorders&) = delete;
  Recorders& operator=(const Recorders&) = delete;

  // Makes the file of a worker, and tells the worker of it. A newcomer's file replaces that of the dead worker. Where
  // there is no memory for it, the worker records in its own.
  void add_to(int local_rank, Variables& variables);
  void ended(const Exit& exit);
  // Copies what all workers have recorded to the folder of --dump-dir; nothing without the option. Says where, or what
  // went wrong. Gives up on a disk that does not answer, as LogFiles does. `death`: the number, from 1, of a worker's
  // death after which the job may go on. Its dumps get a folder of their own, which later dumps leave alone.
  void dump(Console& console, std::size_t death = 0);
  // By local rank; empty: the worker records in memory of its own.
  std::vector<std::string> paths() const;
  bool writes_dumps() const { return !options_.dump_dir.empty(); }

 private:
  struct File {
    std::string path;          // empty: none
    std::string how_it_ended;  // empty: it runs
  };

  const JobOptions& options_;
  const JobSpec& job_;
  LogFiles* logs_;
  std::unique_ptr<LogFiles> own_logs_;  // what `logs_` is from the first dump on, where it was nullptr
  SignalWatch& signals_;
  std::vector<File> files_;  // by local rank
};

// Whether the process has a handler for the signal, or blocks it to read it from a descriptor: otherwise the signal
// ends it. A thread in sigwait() is not seen.
bool takes_signal(pid_t pid, int signal_number);

}  // namespace lockstep::launch
