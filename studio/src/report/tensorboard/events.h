// TensorBoard's messages, and the records of its event files. Numbers of fields are those of tensorboard/compat/proto
// (event, summary, tensor).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "report/tensorboard/histogram.h"

namespace lockstep::report {

// Each of these is one value of a Summary. `tag` must be UTF-8, as all text.
std::string scalar_value(std::string_view tag, double value);
std::string image_value(std::string_view tag, int width, int height, std::string_view png);
std::string histogram_value(std::string_view tag, const Histogram& histogram);
std::string text_value(std::string_view tag, std::string_view text);

// The first record of a file.
std::string version_record(double wall_time);
std::string summary_record(double wall_time, std::int64_t step, std::string_view value);
// A session of a run begins with this step.
std::string start_record(double wall_time, std::int64_t step);

}  // namespace lockstep::report
