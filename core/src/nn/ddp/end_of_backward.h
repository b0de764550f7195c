// Backward passes inside backward passes, as reentrant activation checkpointing makes them.
#pragma once

#include <functional>
#include <memory>

namespace lockstep::nn_detail {

// How many backward passes the calling code is inside of; 0: none.
int backward_depth();

// Called at the end of a backward pass, with its depth.
using EndOfBackward = std::function<void(int depth)>;

// To be called by code that runs inside a backward pass. Calls `end` once, at the end of the pass around it that has
// this depth. That of a deeper pass comes sooner, where LibTorch runs the passes around it in another thread: more than
// 60 of them, or segments on several devices. `end` is destroyed uncalled if a pass fails.
void at_end_of_backward(int depth, std::shared_ptr<const EndOfBackward> end);

}  // namespace lockstep::nn_detail
