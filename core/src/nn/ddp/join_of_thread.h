// What others may know of the join whose loop this thread is running.
#pragma once

namespace lockstep::nn_detail {

// Whether gradients are divided by the number of ranks that still have inputs, not by that of all ranks.
bool join_divides_by_active_ranks();

}  // namespace lockstep::nn_detail
