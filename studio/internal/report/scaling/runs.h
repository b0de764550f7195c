// Runs a program under `lockstep run` with several numbers of processes, and reads what each run has told.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/report/scaling.h"

namespace lockstep::report {

struct ScalingOptions {
  std::vector<int> processes = {};  // of each row, in the order of the runs
  int runs = 1;  // of each row; taken in turn, so that what slows the machine for a while meets all rows
  ScalingKind kind = ScalingKind::kStrong;
  std::filesystem::path folder = {};  // gets a folder for each run: folder_of_run()
  // Does what `lockstep` does with these arguments, in this process, and returns the exit code.
  std::function<int(std::vector<std::string> arguments)> launch = {};
  std::vector<std::string> command = {};
  int cores = 1;  // that all processes of a run share; decides about OMP_NUM_THREADS where that is not set
};

struct ScalingOutcome {
  ScalingTable table = {};  // of the runs before the one that failed: they may have taken hours
  Status status = {};       // why that one failed; ok when the table has all runs
  int signal = 0;           // that has ended the measurement; the status says so too
};

// procs-2/run-1 in the folder of the table. Runs count from 1.
std::filesystem::path folder_of_run(const std::filesystem::path& folder, int processes, int run);

// `say` gets a line for people before each run and one after it, with its seconds. Blocks until all runs are done, or
// one has failed. Sets OMP_NUM_THREADS and LOCKSTEP_RUN_FOLDER of this process. The ranks' stdout also goes
// to files in the run's folder, so they can print on when nobody reads this process's stdout.
// Errors: kInternal when a run fails; kNotFound when a run reported no seconds per epoch; kAborted when SIGINT,
// SIGTERM, SIGHUP or SIGQUIT has ended a run.
ScalingOutcome measure_scaling(const ScalingOptions& options, const std::function<void(const std::string&)>& say);

// The runs that the table lacks, for people: "1 of 3 with 2 processes, 3 of 3 with 4 processes". Empty: it has all.
std::string missing_runs(const ScalingOptions& options, const ScalingTable& table);

// report.html, with the table in it and beside it, in the folder of the last run of each row, where that has a log.
// Returns the pages. Errors: of write_scaling and write_report.
Result<std::vector<std::filesystem::path>> write_run_reports(const ScalingOptions& options, const ScalingTable& table);

// What the log of a run tells: the median seconds of its epochs (without the first, which warms up, when there are
// three or more), the accuracy of the last evaluation, the part of the time in "compute". NaN: not told.
Measurement measurement_of(const std::filesystem::path& run_folder);

// Takes what a line of output tells, for programs without a log; anything may be before it:
//   lockstep-result: {"seconds_per_epoch": 1.5, "accuracy": 0.91, "device_use": 0.8}
void take_result_line(const std::string& line, Measurement& measurement);

}  // namespace lockstep::report
