// All of Lockstep that a training program needs.
#pragma once

#include "lockstep/c10d/distributed.h"  // IWYU pragma: export
