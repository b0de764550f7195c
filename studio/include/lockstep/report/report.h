// report.html of a run: one file without a script that needs no network.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/report/run.h"
#include "lockstep/report/scaling.h"

namespace lockstep::report {

// The page: results, curves, time per part and rank, confusion matrix, the scaling table if there is
// one, configuration and versions. All text from the run is escaped. Curves with many steps are thinned, and of each
// bundle of steps the smallest and the largest value are drawn, so the page stays small.
std::string html_report(const RunRecord& run, const ScalingTable& scaling = {});

// Reads folder/run.jsonl, and folder/scaling.json where `lockstep scaling` has written one, and writes the page; `file`
// appears when it is complete. An empty `file` is folder/report.html. A folder with a scaling table and no run gets a
// page too. Errors: those of read_run, and of writing `file`.
Status write_report(const std::filesystem::path& folder, const std::filesystem::path& file = {});

}  // namespace lockstep::report
