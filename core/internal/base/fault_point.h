// Places where a test kills or freezes its own process, to see how the other ranks fare. They are empty in the product:
// only core/tests/sweep builds the engine with LOCKSTEP_FAULT_POINTS and defines what happens.
#pragma once

#if defined(LOCKSTEP_FAULT_POINTS)
namespace lockstep {
void fault_point(const char* where);
}  // namespace lockstep
#define LOCKSTEP_FAULT_POINT(where) ::lockstep::fault_point(where)
#else
#define LOCKSTEP_FAULT_POINT(where) static_cast<void>(0)
#endif
