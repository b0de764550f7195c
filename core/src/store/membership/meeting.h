// Ranks that tell one another one line each before they go on. Each rank sends three requests, however many there are.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct Meeting {
  std::string so_far_key;   // all lines in the order in which they came
  std::string outcome_key;  // the outcome, written once: all lines, or why the ranks will not go on
  int group_size = 1;
  // Whether these lines, perhaps not all yet, can belong to one group.
  std::function<Status(const std::string& lines)> check = {};
  // The error when time is up: who came, and who is missing.
  std::function<Status(const std::string& lines, std::chrono::duration<double> spent)> missing = {};
};

// Collective: blocks until all ranks have written their `line`, which ends in a newline; returns all of them. All ranks
// get the same outcome.
Result<std::string> meet(Store& store, const Meeting& meeting, const std::string& line, Deadline deadline);

// Whether an outcome says why the ranks did not go on.
bool is_refusal(std::string_view outcome);

// For a rank that cannot come: the ranks that wait for it get `why`. Best effort.
void stay_away(Store& store, const Meeting& meeting, const Status& why);

}  // namespace lockstep::comm
