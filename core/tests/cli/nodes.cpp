#include "cli/nodes.h"

namespace lockstep::test {

Process& LocalNodes::start(int workers, const Words& program, const Words& more, const Words& environment) {
  Process::Settings settings;
  settings.environment = Words{"LOCKSTEP_JOB_KEY=secret of the test"} + environment;
  const Words command = Words{LOCKSTEP_PROGRAM,  "run",      "--nnodes",         nnodes_,
                              "--rdzv-endpoint", endpoint(), "--nproc-per-node", std::to_string(workers)} +
                        options_ + more + program;
  launchers_.push_back(std::make_unique<Process>(command, settings));
  return *launchers_.back();
}

}  // namespace lockstep::test
