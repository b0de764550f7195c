// Runs a program from a test: its output, its end, signals to it, and proof that its descendants are gone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::test {

// How a program ended, as a shell says it (128 + number for a signal), and all output of it and its descendants.
struct Finished {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// A running program with its output in files of a scratch folder. The destructor kills it.
class Process {
 public:
  struct Settings {
    std::vector<std::string> environment = {};  // "NAME=value" added to this process's
    int stdout_fd = -1;                         // instead of the file; not owned
    int stderr_fd = -1;
  };

  Process(const std::vector<std::string>& command, const Settings& settings);
  explicit Process(const std::vector<std::string>& command) : Process(command, Settings()) {}
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Blocks until the program ends. After `limit` the test fails and the program is killed. A loaded machine takes many
  // seconds to start programs with LibTorch, so limits are long: they only end tests that would hang.
  Finished finish(std::chrono::seconds limit = std::chrono::seconds(100));
  // Whether it has ended. finish() still tells how.
  bool ended() const;
  // Blocks until every process that inherited the program's descriptors is gone; false after `limit`. It also sees
  // descendants that have left their session or parent.
  bool wait_until_no_descendant(std::chrono::seconds limit = std::chrono::seconds(60));
  // What was written to stdout and stderr so far.
  std::string out_so_far() const;
  std::string err_so_far() const;

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::string folder_;
  Fd life_line_;  // end of file once no descendant is left
};

Finished run_program(const std::vector<std::string>& command);

// Whether the process has a handler of its own for the signal, or blocks it to read it from a descriptor.
bool takes_signal(pid_t pid, int signal);

// Whether a signal has stopped the process.
bool is_stopped(pid_t pid);

// Blocks until `done` returns true, which it calls every millisecond; false after `limit`.
template <typename Condition>
bool wait_for(Condition done, std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace lockstep::test

#include <thread>

template <typename Condition>
bool lockstep::test::wait_for(Condition done, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}
