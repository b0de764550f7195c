// Times that both engines keep to.
#pragma once

#include <chrono>

namespace lockstep::comm {

// How often a wait, or a caller that only tests, looks for deaths and for its deadline.
inline constexpr auto kCheckEvery = std::chrono::milliseconds(5);

// A dead rank may hold a ticket that nobody else can finish. After this time without progress it is taken to hold one.
inline constexpr auto kDeadTicket = std::chrono::milliseconds(500);

}  // namespace lockstep::comm
