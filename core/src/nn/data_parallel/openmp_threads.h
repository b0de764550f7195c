// The threads with which LibTorch's operators share their work.
#pragma once

namespace lockstep::nn_detail {

// Ends the OpenMP threads that the calling thread has started for its operators; its next large operator starts them
// again, which takes some 50 us a thread. For a caller that is about to wait for threads of its own: after an operator
// libgomp's threads do not sleep, but look for new work for some milliseconds, and take the cores from those that have
// some. Does nothing where the process has no OpenMP, or within an operator.
void end_openmp_threads();

}  // namespace lockstep::nn_detail
