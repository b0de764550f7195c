// Runs of ranks of which one is killed or frozen.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/tcp_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"
#include "sweep/script.h"

namespace lockstep::test {

// Ranks in processes of their own, each of which runs the current test; its body tells by ScriptSettings::is_rank().
class Run {
 public:
  explicit Run(ScriptSettings settings);

  // Kills the victim, some time after all ranks have said "ready".
  void kill_victim(std::chrono::microseconds after);
  // To its end; a victim that has frozen itself is resumed once the others are through. What was wrong; empty: nothing.
  std::string finish();
  // After finish(): how often the victim has come to each fault point.
  std::map<std::string, int> points() const { return points_; }

 private:
  Process& victim() const { return *ranks_[settings_.victim]; }
  bool survivors_are_through() const;

  ScriptSettings settings_;
  const ScratchFolder folder_;
  std::unique_ptr<comm::TcpStoreServer> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
  std::map<std::string, int> points_;
};

// Several at a time, as they wait more than they work (LOCKSTEP_TEST_SWEEP_AT_ONCE: how many). Fails the current test
// where something was wrong, or is left.
void run_all(const std::vector<ScriptSettings>& scenarios);

}  // namespace lockstep::test
