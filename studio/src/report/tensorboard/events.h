// TensorBoard's messages, and the records of its event files. Numbers of fields are those of tensorboard/compat/proto
// (event, summary, tensor) and tensorboard/plugins/hparams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/report/values.h"
#include "report/tensorboard/histogram.h"
#include "report/tensorboard/message.h"

namespace lockstep::report {

// Each of these is one value of a Summary. `tag` must be UTF-8, as all text.
Message scalar_value(std::string_view tag, double value);
Message image_value(std::string_view tag, int width, int height, std::string_view png);
Message histogram_value(std::string_view tag, const Histogram& histogram);
Message text_value(std::string_view tag, std::string_view text);

// The three values of the HPARAMS page.
Message hparams_experiment(const Values& hparams, const Scalars& metrics);
Message hparams_session_start(const Values& hparams);
Message hparams_session_end();

// The first event of a file.
Message version_event(double wall_time);
Message summary_event(double wall_time, std::int64_t step, const Message& value);
// A session of a run begins with this step.
Message start_event(double wall_time, std::int64_t step);

// length, checksum of the length, event, checksum of the event (TFRecord).
std::string record(const Message& event);

}  // namespace lockstep::report
