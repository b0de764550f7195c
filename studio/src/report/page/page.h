// The parts of report.html, and how they write numbers.
#pragma once

#include <string>

#include "lockstep/report/run.h"
#include "lockstep/report/scaling.h"
#include "picture_tools/web_page.h"

namespace lockstep::report {

using data::escaped;

// Four digits, for people: "0.1235", "12.3k", "1.2e-05", "not a number".
std::string number_text(double value);
std::string percent_text(double part);   // of 0 to 1: "91.2 %"; "-" for NaN
std::string seconds_text(double value);  // "0.42 s", "12.3 s", "3:05", "2:03:04"; "-" for NaN
std::string utc_text(double unix_seconds);

// --- The parts. Each returns its HTML, or nothing where the run has nothing of it.

std::string summary_section(const RunRecord& run);
std::string curves_section(const RunRecord& run);
std::string times_section(const RunRecord& run);
std::string confusion_section(const RunRecord& run);
std::string scaling_section(const ScalingTable& table);
std::string settings_section(const RunRecord& run);

// The middle of some numbers; NaN of none.
double median(std::vector<double> values);

}  // namespace lockstep::report
