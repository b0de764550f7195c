// The program of every rank of a sweep: it joins two groups, goes once through every way in which the engine moves
// data, and leaves. One of the ranks kills or freezes itself at a fault point (base/fault_point.h); the others end with
// an error that names it, and then use the memory of their operations for something else.
#pragma once

#include <chrono>
#include <map>
#include <string>

namespace lockstep::test {

// The environment in which a rank is started.
struct ScriptSettings {
  int rank = 0;
  int world = 1;
  int victim = 0;
  int port = 0;                             // of the store
  bool machines = false;                    // two ranks on a machine, as far as they know
  std::string point;                        // where the victim stops; empty: nowhere
  int passing = 0;                          // the how manyth time that it comes there
  int signal = 0;                           // SIGKILL or SIGSTOP
  std::string go_on;                        // a file: who has used the memory otherwise waits for it
  std::chrono::microseconds kill_after{0};  // used by the parent

  static bool is_rank();
  static ScriptSettings of_process();
  std::map<std::string, std::string> environment() const;
};

// From now on this process stops where the settings say.
void stop_at_point(const ScriptSettings& settings);

// Says "reused" once the memory of a failed operation is in other use, then waits for `go_on`. At the end, lines
// "point N NAME": how often this rank has come to each. Fails the current test where anything is not as it must be.
void run_script(const ScriptSettings& settings);

}  // namespace lockstep::test
