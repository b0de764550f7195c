// The parts of report.html. Each returns its HTML, or nothing where the run has nothing of it.
#pragma once

#include <string>

#include "lockstep/report/run.h"
#include "lockstep/report/scaling.h"

namespace lockstep::report {

std::string summary_section(const RunRecord& run);
std::string curves_section(const RunRecord& run);
std::string times_section(const RunRecord& run);
std::string confusion_section(const RunRecord& run);
std::string samples_section(const RunRecord& run);
std::string scaling_section(const ScalingTable& table);
std::string settings_section(const RunRecord& run);

// The middle of some numbers; NaN of none.
double median(std::vector<double> values);

}  // namespace lockstep::report
