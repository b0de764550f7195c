// Times that both engines keep to.
//
// Their waits are two loops with times of their own. The ranks of one machine wait on a futex in shared memory
// (local/waiting.h): the awaited rank wakes the sleeper, so a sleep may last until the next check. A group of several
// machines must progress its transport (hierarchical/hierarchical_group.cpp): it sleeps on the transport's descriptor,
// which ranks of its own machine do not wake, so it sleeps only briefly.
#pragma once

#include <chrono>

namespace lockstep::comm {

// How often a wait, or a caller that only tests, looks for deaths and for its deadline.
inline constexpr auto kCheckEvery = std::chrono::milliseconds(5);

// A dead rank may hold a ticket that nobody else can finish. After this time without progress it is taken to hold one.
inline constexpr auto kDeadTicket = std::chrono::milliseconds(500);

}  // namespace lockstep::comm
