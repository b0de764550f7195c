// Places at which a test kills or freezes its own process, to see what that leaves to the others. Nothing in the
// product: only the tests of it (tests/sweep) build the engine with LOCKSTEP_FAULT_POINTS, and define what
// happens.
#pragma once

#if defined(LOCKSTEP_FAULT_POINTS)
namespace lockstep::comm {
void fault_point(const char* where);
}  // namespace lockstep::comm
#define LOCKSTEP_FAULT_POINT(where) ::lockstep::comm::fault_point(where)
#else
#define LOCKSTEP_FAULT_POINT(where) static_cast<void>(0)
#endif
