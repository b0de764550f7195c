// Logs of runs in folders of tests, written and read back.
#pragma once

#include <stdexcept>
#include <utility>

#include "lockstep/report/run.h"
#include "lockstep/report/run_log.h"
#include "support/scratch_folder.h"

namespace lockstep::report {

inline RunLog open(const test::ScratchFolder& folder) {
  Result<RunLog> log = RunLog::open(folder.path());
  if (!log.ok()) throw std::runtime_error(log.status().message());
  return std::move(log).value();
}

inline RunRecord read(const test::ScratchFolder& folder) {
  Result<RunRecord> run = read_run(folder.path());
  if (!run.ok()) throw std::runtime_error(run.status().message());
  return std::move(run).value();
}

}  // namespace lockstep::report
