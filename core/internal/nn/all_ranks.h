// Small exchanges between ranks.
#pragma once

#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::nn_detail {

// Whether there are other ranks: a group (null: the world) of more than one.
bool has_other_ranks(const ProcessGroup& group);

// Collective. Element r is rank r's `value`.
std::vector<double> of_all_ranks(double value, const ProcessGroup& group);
// The same for several values; every rank has as many.
std::vector<std::vector<double>> rows_of_all_ranks(const std::vector<double>& values, const ProcessGroup& group);

}  // namespace lockstep::nn_detail
