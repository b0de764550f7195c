// Standby: beside each worker one more process of the same program, which has loaded its libraries and waits (hook.h).
// A restart makes the next workers of them, instead of loading LibTorch again. Reserves: the same for newcomers, which
// take the places of single workers that have died.
//
// They are started when the workers have run for a while, at low priority where that can be taken back, under a
// supervisor of their own: they end with the job and with the launcher, as workers do.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/job/agent.h"
#include "launch/job/worker_environment.h"
#include "launch/process/process_tree.h"
#include "launch/standby/program_note.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// For the launcher's thread.
class Standby {
 public:
  explicit Standby(const JobOptions& options) : options_(options) {}
  // Calls end().
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  // `workers` run now: those of the next attempt are started after the delay, if the program has the hook and a restart
  // may follow.
  void prepare(const JobSpec& job, std::span<const Command> workers);
  // The same for one process: a newcomer with this command.
  void prepare_newcomer(const JobSpec& job, const Command& command) { load_later(job, {command}); }
  // When to call start_if_due(); never: nothing is to be started.
  Deadline next_due() const { return due_.value_or(Deadline::never()); }
  // Does not block. What cannot be started is no error: a restart then starts new processes for all workers.
  void start_if_due();

  // Makes `workers` of the waiting processes. They may still be loading. nullopt: there are none for these commands, or
  // not enough; they are gone then.
  std::optional<ProcessTree> release(std::span<const Command> workers, int interrupt_fd);

  // Ends them. An error names processes that could not be killed.
  Status end();

 private:
  void load_later(const JobSpec& job, std::vector<Command> commands);
  Status start();
  Status check(std::span<const Command> workers, int interrupt_fd);
  void send(std::size_t number, const std::string& changes, const Command& worker);

  const JobOptions& options_;
  std::optional<Deadline> due_;
  std::vector<Command> commands_;
  std::shared_ptr<const ErrorFiles> error_files_;
  std::vector<Fd> sockets_;
  std::optional<ProgramFile> file_;
  std::optional<ProcessTree> tree_;
};

class Reserves {
 public:
  explicit Reserves(const JobOptions& options) : options_(options) {}

  // A newcomer of this local rank may follow, with this command.
  void prepare(const JobSpec& job, int local_rank, const Command& newcomer);
  Deadline next_due() const;
  void start_if_due();
  // nullopt: none waits.
  std::optional<ProcessTree> release(int local_rank, const Command& newcomer, int interrupt_fd);
  Status end();

 private:
  const JobOptions& options_;
  std::map<int, Standby> of_workers_;  // by local rank
};

}  // namespace lockstep::launch
