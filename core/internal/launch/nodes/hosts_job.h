// `lockstep run --hosts`: starts a launcher on each machine over ssh, serves the store in which they meet, shows their
// output, and ends them.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::launch {

struct Host {
  std::string name;  // as ssh takes it: "b", "user@b", "fd00::2"
  int workers = 0;   // 0: as --nproc-per-node says
};

// "a,b:4,user@c,fd00::2,[fd00::3]:4": IPv6 addresses are in brackets where a number follows, else with or without.
// kInvalidArgument: empty names, numbers below 1, brackets around anything else, a name twice.
Result<std::vector<Host>> parse_hosts(std::string_view text);

// Whether the name is that of this machine: localhost, the host name or an address of it. With "user@" it is not, since
// that user may be another one.
bool is_this_machine(std::string_view name);

// The words of --ssh, as a shell splits them: quotes and backslashes keep spaces in a word.
Result<std::vector<std::string>> split_words(std::string_view text);

// The words as one command line for a POSIX shell.
std::string quote_for_shell(const std::vector<std::string>& words);

struct HostsOptions {
  std::vector<Host> hosts;
  int min_nodes = 1;                      // the job ends when fewer launchers are left
  std::vector<std::string> ssh;           // the command that gets a host's name and a command line for its shell
  std::string local_addr = {};            // where the hosts reach this machine; empty: found out
  std::string nproc_per_node = {};        // for hosts without a number; empty: one worker, or one for each GPU
  std::string run_id = {};                // empty: random
  std::string rdzv_conf = {};             // for the launchers, further settings
  std::vector<std::string> options = {};  // of `lockstep run`, for all launchers
  std::vector<std::string> program = {};  // and its arguments
  std::chrono::milliseconds grace{5000};
};

// Runs the job to its end; blocks. Returns 0, the exit code of the launcher whose failure ended the job, or 128 + the
// number of the signal that ended this process. The job's key goes to the launchers through their standard input, never
// through a command line. When this process dies, the launchers lose the store and end their workers.
//
// It takes over the process while it runs, as run_job does.
Result<int> run_on_hosts(const HostsOptions& options);

}  // namespace lockstep::launch
