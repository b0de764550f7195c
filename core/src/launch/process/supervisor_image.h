// The supervisor's program (supervisor/main.cpp), which this library carries as bytes.
#pragma once

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// A new memfd with the program, executable as /proc/self/fd/N. It is closed on exec.
Result<Fd> supervisor_image();

}  // namespace lockstep::launch
