// The supervisor's program (supervisor/main.cpp), carried inside this library as bytes.
#pragma once

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// A fresh memfd that holds the program, executable as /proc/self/fd/N. Closed on exec.
Result<Fd> supervisor_image();

}  // namespace lockstep::launch
