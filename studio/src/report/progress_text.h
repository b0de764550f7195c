// What progress says, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/report/part_timer.h"

namespace lockstep::report {

// The state of one pass. Seconds of steady time.
struct PassState {
  std::string name = {};
  std::int64_t epoch = 0;   // from 0
  std::int64_t epochs = 0;  // 0: unknown
  std::int64_t steps = 0;   // 0: unknown
  std::int64_t done = 0;
  std::int64_t done_before = 0;  // of these, before the run was resumed: not in samples, seconds, loss and times
  std::int64_t samples = 0;
  double seconds = 0.0;
  double weighted_loss = 0.0;  // sum of loss times samples
  std::int64_t loss_samples = 0;
  PartTimes times = {};
  double seconds_before = 0.0;  // of this epoch, before this pass
  double epoch_seconds = 0.0;   // of the last whole epoch, with evaluation and saving; 0: unknown
};

// "0:07", "12:34", "3:02:01"; "?" for what is no sensible time.
std::string duration_text(double seconds);

// Until the end of the pass, and of the run; nullopt: unknown.
std::optional<double> seconds_left(const PassState& pass);
std::optional<double> run_seconds_left(const PassState& pass);

// One line of at most `columns` characters, without control characters. What matters least is left out first.
std::string bar_line(const PassState& pass, int columns, bool unicode);
// The same as a sentence of any length, and the sentence at the end of a pass.
std::string plain_line(const PassState& pass);
std::string end_line(const PassState& pass, const std::string& results);

}  // namespace lockstep::report
