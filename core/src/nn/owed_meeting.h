// The meeting that a thread owes the other ranks: in a join that throws, before a pass that sends something.
//
// `ddp->` may begin a pass, or call train(). So the ranks meet only when the pass communicates: in a layer that does so
// in its forward pass, at the latest when the backward pass begins.
#pragma once

#include <c10/core/GradMode.h>

#include <functional>
#include <utility>

namespace lockstep::nn_detail {

inline thread_local std::function<void()> owed_meeting;

// For layers that are about to communicate in their forward pass, before they change anything. Holds the meeting that
// this thread owes, if any, once. It throws where the loop ends. A pass without gradients is none.
inline void hold_owed_meeting() {
  if (owed_meeting && c10::GradMode::is_enabled()) std::exchange(owed_meeting, nullptr)();
}

}  // namespace lockstep::nn_detail
