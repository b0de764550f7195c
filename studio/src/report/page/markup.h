// Text in HTML and SVG.
#pragma once

#include <cstdint>
#include <string>

#include "picture_tools/web_page.h"

namespace lockstep::report {

using data::escaped;

// Four digits, for people: "0.1235", "12.3k", "1.2e-05", "not a number".
std::string number_text(double value);
std::string percent_text(double part);   // of 0 to 1: "91.2 %"; "-" for NaN
std::string seconds_text(double value);  // "0.42 s", "12.3 s", "3:05", "2:03:04"; "-" for NaN
std::string utc_text(double unix_seconds);

}  // namespace lockstep::report
